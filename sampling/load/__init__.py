"""
Load tests, and a search for the highest sustainable rate.

`run_load` generates open-loop or closed-loop traffic and returns a report. `find_capacity` raises the load until an SLO
breaks. Both drive any `async def f(arrival)`. `strategy_workload` turns a strategy into such a function.
`calibrate`, `simulate` and `plan` predict the results without traffic.
"""

from sampling.errors import PreflightFailed, WorkerFailed
from sampling.load._strategy_workload import StrategyWorkload, strategy_workload
from sampling.load.capacity._answer import Axis, CapacityAnswer, Step
from sampling.load.capacity._run import CapacityRun, CapacitySettings, find_capacity
from sampling.load.capacity._search import parse_steps
from sampling.load.model._imported_workload import ImportedWorkload
from sampling.load.model._mix import Mix, mix
from sampling.load.model._populations_report import PopulationsReport, Total
from sampling.load.model._profiles import ArrivalModel, ClosedLoop, OpenLoop, Profile
from sampling.load.model._prompts import Lengths, RandomPrompts
from sampling.load.model._recording import Recording, Tally
from sampling.load.model._report import Bin, LoadReport, Operation
from sampling.load.model._seeds import derive_seed
from sampling.load.model._series import Summary
from sampling.load.model._slo import Slo
from sampling.load.model._stall import Stall
from sampling.load.model._verdict import Backlog, Judgement, judge
from sampling.load.model._workload import Answered, Arrival, DrawnWorkload, Workload, current_arrival, first_token
from sampling.load.planning._calibration import Calibration, calibrate
from sampling.load.planning._plan import Option, Plan, plan
from sampling.load.planning._server_model import ServerModel
from sampling.load.planning._simulation import simulate
from sampling.load.populations import Population, PopulationsRun, run_populations
from sampling.load.report._comparison import Change, Comparison, compare
from sampling.load.report._files import read_report, write_report
from sampling.load.report._page import render_html
from sampling.load.report._table import load_table
from sampling.load.run import LoadRun, run_load
from sampling.load.traffic._arrivals import read_trace
from sampling.load.traffic._http_workload import HttpWorkload

__all__ = [  # noqa: RUF022 - in groups, for those who read it
    # Run load, and read the result
    "Bin",
    "LoadReport",
    "LoadRun",
    "Operation",
    "Recording",
    "Stall",
    "Summary",
    "Tally",
    "run_load",
    # Run several populations at once
    "Population",
    "PopulationsReport",
    "PopulationsRun",
    "Total",
    "run_populations",
    # Arrival profiles
    "ArrivalModel",
    "ClosedLoop",
    "OpenLoop",
    "Profile",
    "read_trace",
    # Workloads
    "Answered",
    "Arrival",
    "DrawnWorkload",
    "HttpWorkload",
    "ImportedWorkload",
    "Lengths",
    "Mix",
    "RandomPrompts",
    "StrategyWorkload",
    "Workload",
    "current_arrival",
    "derive_seed",
    "first_token",
    "mix",
    "strategy_workload",
    # Find the highest rate that meets an SLO
    "Axis",
    "Backlog",
    "CapacityAnswer",
    "CapacityRun",
    "CapacitySettings",
    "Judgement",
    "Slo",
    "Step",
    "find_capacity",
    "judge",
    "parse_steps",
    # Predict results without traffic
    "Calibration",
    "Option",
    "Plan",
    "ServerModel",
    "calibrate",
    "plan",
    "simulate",
    # Show, store and compare reports
    "Change",
    "Comparison",
    "compare",
    "load_table",
    "read_report",
    "render_html",
    "write_report",
    # Errors
    "PreflightFailed",
    "WorkerFailed",
]
