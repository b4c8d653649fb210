"""
How much can a backend take? Open-loop and closed-loop traffic, and a search for the highest rate that holds an SLO.

`run_load` makes traffic and reports what became of it. `find_capacity` raises it until an SLO breaks.
Both drive any `async def f(arrival)`; `strategy_workload` makes one of a strategy.
"""

from sampling.errors import PreflightFailed, WorkerFailed
from sampling.load.answer import Axis, CapacityAnswer, Step
from sampling.load.arrivals import read_trace
from sampling.load.calibrate import Calibration, calibrate
from sampling.load.capacity import CapacityRun, CapacitySettings, find_capacity
from sampling.load.compare import Change, Comparison, compare
from sampling.load.files import read_report, write_report
from sampling.load.imported import ImportedWorkload
from sampling.load.lean_http import HttpWorkload
from sampling.load.mix import Mix, mix
from sampling.load.page import page_of
from sampling.load.plan import Option, Plan, plan
from sampling.load.profiles import ArrivalModel, ClosedLoop, OpenLoop, Profile
from sampling.load.recording import Recording, Tally
from sampling.load.report import Bin, LoadReport, Operation
from sampling.load.run import LoadRun, run_load
from sampling.load.search import parse_steps
from sampling.load.seeds import derive_seed
from sampling.load.series import Summary
from sampling.load.server_model import ServerModel
from sampling.load.simulate import simulate
from sampling.load.slo import Slo
from sampling.load.stalls import Stall
from sampling.load.strategy_workload import StrategyWorkload, strategy_workload
from sampling.load.table import load_table
from sampling.load.verdict import Backlog, Judgement, judge
from sampling.load.workload import Answered, Arrival, DrawnWorkload, Workload, current_arrival, first_token

__all__ = [
    "Answered",
    "Arrival",
    "ArrivalModel",
    "Axis",
    "Backlog",
    "Bin",
    "Calibration",
    "CapacityAnswer",
    "CapacityRun",
    "CapacitySettings",
    "Change",
    "ClosedLoop",
    "Comparison",
    "DrawnWorkload",
    "HttpWorkload",
    "ImportedWorkload",
    "Judgement",
    "LoadReport",
    "LoadRun",
    "Mix",
    "OpenLoop",
    "Operation",
    "Option",
    "Plan",
    "PreflightFailed",
    "Profile",
    "Recording",
    "ServerModel",
    "Slo",
    "Stall",
    "Step",
    "StrategyWorkload",
    "Summary",
    "Tally",
    "WorkerFailed",
    "Workload",
    "calibrate",
    "compare",
    "current_arrival",
    "derive_seed",
    "find_capacity",
    "first_token",
    "judge",
    "load_table",
    "mix",
    "page_of",
    "parse_steps",
    "plan",
    "read_report",
    "read_trace",
    "run_load",
    "simulate",
    "strategy_workload",
    "write_report",
]
