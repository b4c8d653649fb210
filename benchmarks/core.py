"""
Measure the overhead of the engine.

It is compared with a peer and with the floor, on a backend that answers at once.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.peers import MELLEA
from benchmarks.report import Check, Row, Section, Settings, ratio, shout
from benchmarks.scenarios import Scenario
from benchmarks.worker import NotMeasuredError, Worker

SHALLOW = Scenario(8, 1, multi_turn=True)
DEEP = Scenario(256, 1, multi_turn=True)
SHORT_TURNS, LONG_TURNS = 10, 1000
ADDS = 200
LONG = Scenario(8, 1, multi_turn=True, turns=LONG_TURNS)

# The scenario, the least ratio of the peer to ours, and the largest ratio of ours to the floor.
TARGETS: tuple[tuple[Scenario, float, float], ...] = (
    (Scenario(1, 1, passing=True), 5, 3),
    (Scenario(1, 8, passing=True), 2, 4),
    (Scenario(4, 8), 4, 3),
    (SHALLOW, 5, 3),
    (Scenario(32, 1, multi_turn=True), 5, 3),
)
DEPTH_BOUND = 1.3
CONTEXT_BOUND = 1.5  # O(1), with room for noise. Copying 2,000 messages would take a hundred times as long.

Rounds = dict[tuple[str, Scenario], list[float]]


def run(settings: Settings) -> list[Section]:
    """Measure all contenders, round by round, and our contexts."""
    scenarios = [*(scenario for scenario, _, _ in TARGETS), DEEP, LONG]
    workers = _start(settings)
    try:
        rounds = _measure(
            workers, scenarios, rounds=8 if settings.quick else 25, seconds=0.01 if settings.quick else 0.03
        )
    finally:
        for worker in workers.values():
            worker.close()
    return [_attempts(rounds, scenarios, settings), _contexts(settings)]


def _start(settings: Settings) -> dict[str, Worker]:
    contenders: dict[str, Callable[[], Worker]] = {
        "ours": lambda: Worker([sys.executable, "-m", "benchmarks.ours"]),
        "floor": lambda: Worker([sys.executable, "-m", "benchmarks.floor"]),
        "mellea": lambda: Worker([MELLEA.python(), "-m", "benchmarks.mellea_side"], MELLEA.env()),
        "ours on trio": lambda: Worker([sys.executable, "-m", "benchmarks.ours", "trio"]),
    }
    if not settings.peers:
        del contenders["mellea"]
    workers = {}
    for name, start in contenders.items():
        try:
            workers[name] = start()
        except NotMeasuredError as error:
            shout(f"{name} is NOT MEASURED: {error}")
    return workers


def _measure(workers: dict[str, Worker], scenarios: list[Scenario], *, rounds: int, seconds: float) -> Rounds:
    """
    Run the rounds of all contenders in turns.

    Every round has all scenarios and all contenders, so that a slow phase of the machine affects all of them.
    """
    measured: Rounds = {(name, scenario): [] for name in workers for scenario in scenarios}
    for _ in range(rounds):
        for scenario in scenarios:
            for name, worker in workers.items():
                if (name, scenario) not in measured:
                    continue
                try:
                    measured[name, scenario].append(worker.round(scenario, seconds) * 1e6)
                except NotMeasuredError as error:
                    del measured[name, scenario]
                    shout(f"{name}, {scenario.name} is NOT MEASURED: {error}")
    return measured


def _attempts(rounds: Rounds, scenarios: list[Scenario], settings: Settings) -> Section:
    names = ("ours", "floor", *(("mellea",) if settings.peers else ()), "ours on trio")
    targets = {scenario: (less_than_peer, times_floor) for scenario, less_than_peer, times_floor in TARGETS}
    rows = []
    for scenario in scenarios:
        values = {name: min(rounds[name, scenario]) if (name, scenario) in rounds else None for name in names}
        checks = []
        if scenario in targets:
            at_least, at_most = targets[scenario]
            if settings.peers:
                checks.append(Check("mellea ÷ ours", ratio(values["mellea"], values["ours"]), at_least, at_least=True))
            checks.append(Check("ours ÷ floor", ratio(values["ours"], values["floor"]), at_most))
        if scenario == DEEP:
            shallow = min(rounds["ours", SHALLOW]) if ("ours", SHALLOW) in rounds else None
            checks.append(Check(f"ours ÷ ours at {SHALLOW.depth}×1", ratio(values["ours"], shallow), DEPTH_BOUND))
        medians = {name: median(rounds[name, scenario]) for name in names if (name, scenario) in rounds}
        rows.append(Row(scenario.name, values, tuple(checks), {"attempts": scenario.attempts, "medians": medians}))
    peers = {MELLEA.package: MELLEA.version} if settings.peers else {}
    return Section("An attempt", "µs, the least of all rounds", tuple(rows), peers)


def _contexts(settings: Settings) -> Section:
    """
    Measure adding to a short and to a long context.

    "growing" adds to the end again and again, "branching" adds to the same context each time.
    """
    try:
        best = _time_adds(rounds=20 if settings.quick else 100)
    except ImportError as error:
        shout(f"Contexts are NOT MEASURED: {error}")
        best = {}
    rows = []
    for way in ("growing", "branching"):
        values = {f"after {turns:,} turns": best.get((way, turns)) for turns in (SHORT_TURNS, LONG_TURNS)}
        check = Check("long ÷ short", ratio(best.get((way, LONG_TURNS)), best.get((way, SHORT_TURNS))), CONTEXT_BOUND)
        rows.append(Row(way, values, (check,)))
    return Section("Context.add", "µs, the least of all rounds", tuple(rows))


def _time_adds(*, rounds: int) -> dict[tuple[str, int], float]:
    from benchmarks.ours import conversation

    times: dict[tuple[str, int], float] = {}
    for _ in range(rounds):
        for way, work in (("growing", _grow), ("branching", _branch)):
            for turns in (SHORT_TURNS, LONG_TURNS):
                context = conversation(turns)
                message = context.messages[-1]
                gc.collect()
                started = time.perf_counter()
                work(context, message)
                took = (time.perf_counter() - started) * 1e6 / ADDS
                times[way, turns] = min(took, times.get((way, turns), took))
    return times


def _grow(context: Any, message: Any) -> None:
    for _ in range(ADDS):
        context = context.add(message)


def _branch(context: Any, message: Any) -> None:
    for _ in range(ADDS):
        context.add(message)
