"""
Measure the highest load and its regularity.

Contenders are our generator, guidellm and locust, on one loopback server with a fixed SSE answer.
The delivered load is read from the log of the server, never from the client. At a given rate, request k is due k / rate
seconds after the first. Its lag is the time by which it arrives later than that, for all contenders.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.http import direct
from benchmarks.http_line import LineWorker
from benchmarks.peers import GUIDELLM, LOCUST, Peer
from benchmarks.report import Check, Row, Section, Settings, ratio, shout
from benchmarks.worker import ROOT, NotMeasuredError

RATES = (200, 500, 1000)
HIGHER_RATES = (2000, 4000, 8000, 10_000, 12_000, 14_000, 16_000, 20_000, 24_000)
CEILING_S = 3  # length of a run at a higher rate, which only has to find the limit
DELIVERED_SHARE = 0.95  # of the target rate. Below that, no higher rate is tried.
WORKERS = 2
USERS = 64  # without think time, the same number for ours and locust
BUSY_SHARE = 0.9  # of a core. A server that busy was the limit.
COMPARED_RATES = (200, 500)
GAP_S = 0.9  # A pause this long in the log of the server separates two runs.
TIMES_GUIDELLM, TIMES_LOCUST, LAG_SHARE = 5, 1, 0.1
MILLION = 1_000_000
MEMORY_MB = 200


@dataclass(frozen=True)
class Run:
    """The result of one run, from the log of the server."""

    per_second: float
    lag_ms: float | None = None
    """The 99th percentile of the lag, if the run has a schedule."""

    seconds: float = math.inf
    """From the first request to the last."""

    processes: int = 1
    client_cores: float | None = None
    """Average number of cores that the client used, if it is known without the time to start processes."""

    server_cores: float | None = None


Runs = dict[int, Run]
"""The runs, by target rate."""


def run(settings: Settings) -> list[Section]:
    """Start the server, run each contender, and read the log."""
    seconds = 3 if settings.quick else 8
    server = LineWorker([sys.executable, "-m", "benchmarks.load_server"], direct(os.environ))
    try:
        ours = Ours(server, f"http://127.0.0.1:{server.ask()['port']}/v1", seconds)
        lean = ours.at_rates(RATES) | ours.at_rates(HIGHER_RATES)
        closed = ours.with_users()
        locust = _locust(server, ours.base_url, seconds) if settings.peers else None
        lean_together = ours.at_rates(HIGHER_RATES[3:], workers=WORKERS)
        closed_together = ours.with_users(workers=WORKERS)
        costs = _client_costs(ours.base_url)
        guidellm = _guidellm(server, ours.base_url, seconds) if settings.peers else {}
    finally:
        server.close()
    highest = {
        "ours, by the clock": _highest_of(lean),
        f"ours, {USERS} users": closed,
        f"ours, by the clock, {WORKERS} processes": _highest_of(lean_together),
        f"ours, {USERS} users, {WORKERS} processes": closed_together,
        "guidellm": _highest_of(guidellm),
        f"locust, {USERS} users": locust,
    }
    peers = {GUIDELLM.package: GUIDELLM.version, LOCUST.package: LOCUST.version} if settings.peers else {}
    return [
        _rates(lean, guidellm, settings, peers),
        _highest(highest, settings, peers),
        _busy(highest),
        _costs(costs),
        _memory(settings),
    ]


# Runs.


class Ours:
    """Our generator, in one process or several."""

    def __init__(self, server: LineWorker, base_url: str, seconds: float) -> None:
        self._server = server
        self.base_url = base_url
        self._seconds = seconds

    def at_rates(self, rates: Sequence[int], *, workers: int = 1) -> Runs:
        """Send at each rate, until one is not delivered."""
        found: Runs = {}
        for rate in rates:
            seconds = self._seconds if rate in RATES else min(self._seconds, CEILING_S)
            done = self._run(rate=rate, seconds=seconds, workers=workers)
            if done is None:
                break
            found[rate] = done
            if done.per_second < DELIVERED_SHARE * rate:
                break
        return found

    def with_users(self, *, workers: int = 1) -> Run | None:
        """Send the next request after each answer, like locust."""
        return self._run(users=USERS, seconds=self._seconds, workers=workers)

    def _run(self, **order: Any) -> Run | None:
        before = self._server.ask()
        reported = _ask_ours(client="lean", base_url=self.base_url, **order)
        if reported is None:
            return None
        if reported["client_limit"]:
            print(f"  ours, {_described(order)}, reports: {reported['client_limit']}", flush=True)
        run = _run_of(before, self._server.ask(), order.get("rate"), order["workers"])
        return run if order["workers"] > 1 else replace(run, client_cores=reported["cpu_s"] / run.seconds)


def _described(order: Mapping[str, Any]) -> str:
    wanted = f"{order['rate']:,}/s" if "rate" in order else f"{order['users']} users"
    return f"{wanted} from {order['workers']} process{'es' if order['workers'] > 1 else ''}"


def _run_of(before: Mapping[str, Any], after: Mapping[str, Any], rate: int | None, processes: int = 1) -> Run:
    arrived = sorted(after["arrived"])
    seconds = arrived[-1] - arrived[0] if len(arrived) > 1 else math.inf
    return Run(
        per_second=_rate(arrived),
        lag_ms=None if rate is None else _lag_ms(arrived, rate),
        seconds=seconds,
        processes=processes,
        server_cores=(after["cpu_s"] - before["cpu_s"]) / seconds,
    )


def _client_costs(base_url: str) -> dict[str, float | None]:
    orders: dict[str, dict[str, Any]] = {
        "lean HTTP": {"client": "lean", "base_url": base_url, "users": 16, "requests": 1600},
        "OpenAIBackend through sample()": {"client": "sampled", "base_url": base_url, "users": 16, "requests": 800},
        "a workload that does nothing": {"client": "nothing", "users": 16, "requests": 8000},
    }
    answers = {name: _ask_ours(**order) for name, order in orders.items()}
    return {name: None if reported is None else reported["cpu_us"] for name, reported in answers.items()}


def _ask_ours(**order: Any) -> dict[str, Any] | None:
    command = [sys.executable, "-m", "benchmarks.load_ours", json.dumps(order)]
    done = subprocess.run(command, cwd=ROOT, env=direct(os.environ), capture_output=True, text=True, check=False)
    if done.returncode:
        shout(f"ours is NOT MEASURED: {done.stderr.strip()[-500:]}")
        return None
    reported: dict[str, Any] = json.loads(done.stdout)
    if reported["failed"]:
        shout(f"ours, {order}: {reported['failed']} requests failed")
    return reported


def _guidellm(server: LineWorker, base_url: str, seconds: float) -> Runs:
    """
    Run guidellm once, with all rates.

    It takes long to start. The log has a pause between two rates.
    """
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder, "prompts.csv")
        prompts.write_text("prompt\n" + "Write something.\n" * 20_000)
        profile = {"kind": "constant", "rate": list(RATES)}
        backend = {"kind": "openai_http", "target": base_url.removesuffix("/v1"), "model": "canned"}
        arguments = [
            *("run", "--backend", json.dumps(backend), "--profile", json.dumps(profile)),
            *("--constraint", json.dumps({"kind": "max_duration", "seconds": seconds})),
            *("--data", json.dumps({"kind": "csv_file", "path": str(prompts)})),
            *("--output", json.dumps({"kind": "json", "path": str(Path(folder, "out.json"))})),
            "--disable-console",
        ]
        runs = _runs_of(server, GUIDELLM, "guidellm", arguments, folder)
    return {rate: Run(_rate(arrived), _lag_ms(arrived, rate)) for rate, arrived in zip(RATES, runs, strict=False)}


def _locust(server: LineWorker, base_url: str, seconds: float) -> Run | None:
    arguments = [
        *("-f", str(ROOT / "benchmarks" / "load_locust.py"), "--host", base_url.removesuffix("/v1")),
        # Its run time includes the start of the process and its imports.
        *("--headless", "--only-summary", "--users", f"{USERS}", "--spawn-rate", f"{USERS}"),
        *("--run-time", f"{seconds + 8:g}s"),
    ]
    before = server.ask()
    with tempfile.TemporaryDirectory() as folder:
        runs = _runs_of(server, LOCUST, "locust", arguments, folder)
    if not runs:
        return None
    return _run_of(before, {"arrived": max(runs, key=len), "cpu_s": server.ask()["cpu_s"]}, None)


def _runs_of(server: LineWorker, peer: Peer, program: str, arguments: Sequence[str], folder: str) -> list[list[float]]:
    """
    Run a peer, and return its arrivals from the log.

    The log is split where nothing arrived for a while.
    """
    try:
        command = [str(peer.python().parent / program), *arguments]
    except NotMeasuredError as error:
        shout(f"{peer.package} is NOT MEASURED: {error}")
        return []
    server.ask()
    done = subprocess.run(
        command, cwd=folder, env=direct(peer.env()), capture_output=True, text=True, check=False, timeout=900
    )
    arrived = server.ask()["arrived"]
    if not arrived:
        shout(f"{peer.package} is NOT MEASURED: {(done.stdout + done.stderr).strip()[-500:]}")
    return [run for run in _cut(sorted(arrived)) if len(run) > 50]


def _cut(arrived: Sequence[float]) -> Iterator[list[float]]:
    run: list[float] = list(arrived[:1])
    for earlier, later in pairwise(arrived):
        if later - earlier > GAP_S:
            yield run
            run = []
        run.append(later)
    yield run


def _rate(arrived: Sequence[float]) -> float:
    """
    Return the requests per second.

    The first and the last tenth are left out, because they contain the start and the end.
    """
    inner = sorted(arrived)[len(arrived) // 10 : len(arrived) - len(arrived) // 10]
    return (len(inner) - 1) / (inner[-1] - inner[0]) if len(inner) > 1 else 0.0


def _lag_ms(arrived: Sequence[float], rate: float) -> float:
    """
    Return the 99th percentile of the schedule lag.

    The schedule begins so that the most punctual request has no lag.
    """
    offsets = [instant - number / rate for number, instant in enumerate(sorted(arrived))]
    lags = sorted(offset - min(offsets) for offset in offsets)
    return 1000 * lags[-(-99 * len(lags) // 100) - 1] if lags else math.inf


# Results.


def _rates(ours: Runs, guidellm: Runs, settings: Settings, peers: dict[str, str]) -> Section:
    rows = []
    for rate, mine in ours.items():
        theirs = guidellm.get(rate)
        values = {
            "ours, per second": mine.per_second,
            "guidellm, per second": theirs and theirs.per_second,
            "ours, p99 lag in ms": mine.lag_ms,
            "guidellm, p99 lag in ms": theirs and theirs.lag_ms,
        }
        checks = []
        if settings.peers and rate in COMPARED_RATES:
            lags = ratio(values["ours, p99 lag in ms"], values["guidellm, p99 lag in ms"])
            checks.append(Check("lag, ours ÷ guidellm", lags, LAG_SHARE))
        rows.append(Row(f"{rate:,} per second", values, tuple(checks)))
    return Section("Delivered load, one process of ours", "by the server's log", tuple(rows), peers)


def _highest_of(runs: Runs) -> Run | None:
    return max(runs.values(), key=lambda each: each.per_second, default=None)


def _highest(highest: Mapping[str, Run | None], settings: Settings, peers: dict[str, str]) -> Section:
    """
    Compare the highest rates of all contenders.

    Ours is compared with guidellm and with one process of locust.
    """
    found = {name: None if each is None else each.per_second for name, each in highest.items()}
    locust = found[f"locust, {USERS} users"]
    rows = []
    for name, per_second in found.items():
        checks = []
        if settings.peers and name.startswith("ours"):
            checks.append(Check("÷ guidellm", ratio(per_second, found["guidellm"]), TIMES_GUIDELLM, at_least=True))
            checks.append(Check("÷ locust", ratio(per_second, locust), TIMES_LOCUST, at_least=True))
        rows.append(Row(name, {"per second": per_second}, tuple(checks)))
    return Section("Highest delivered rate", "per second, by the server's log", tuple(rows), peers)


def _busy(highest: Mapping[str, Run | None]) -> Section:
    """Print the limit of each run: client, server or cores."""
    rows = []
    for name, each in highest.items():
        if each is not None and each.server_cores is not None:
            print(f"  {name}: {_limit_of(each)}", flush=True)
            rows.append(Row(name, {"client": each.client_cores, "server": each.server_cores}))
    return Section("Busy at the highest rate", f"cores, of {os.cpu_count()}", tuple(rows))


def _limit_of(run: Run) -> str:
    cores = os.cpu_count() or 1
    if run.server_cores is not None and run.server_cores > BUSY_SHARE:
        return "the server was the limit, the client could have sent more"
    if run.processes >= cores:
        return f"{run.processes} processes and the server shared {cores} cores, which were the limit"
    return "the client was the limit, the server had time to spare"


def _costs(costs: dict[str, float | None]) -> Section:
    rows = tuple(Row(name, {"µs": cost}) for name, cost in costs.items())
    return Section("What a request costs the client, generator included", "µs of CPU", rows)


def _memory(settings: Settings) -> Section:
    requests = MILLION // 20 if settings.quick else MILLION
    reported = _ask_ours(client="nothing", users=100, requests=requests)
    peak = None if reported is None else reported["peak_mb"]
    check = Check("MB at most", peak, MEMORY_MB)
    row = Row(f"{requests:,} requests, exact percentiles", {"peak": peak}, (check,))
    return Section("Memory of a run", "MB, resident", (row,))
