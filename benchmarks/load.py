"""
How much load can be made, and how evenly: ours, guidellm and locust on one loopback server with a canned SSE answer.

What was delivered is read from the server's own log, never from the client. At a rate, request k should arrive k / rate
after the first; by how much it came later than that is its lag, for everyone in the same way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.http import direct
from benchmarks.http_line import LineWorker
from benchmarks.peers import GUIDELLM, LOCUST, Peer
from benchmarks.report import Check, Row, Section, Settings, ratio, shout
from benchmarks.worker import ROOT, NotMeasuredError

RATES = (200, 500, 1000)
HIGHER_RATES = (1500, 2500, 4000)
WORKERS = 2
COMPARED_RATES = (200, 500)
GAP_S = 0.9  # without requests in the server's log: between two runs
TIMES_GUIDELLM, TIMES_LOCUST, LAG_SHARE = 5, 1, 0.1
MILLION = 1_000_000
MEMORY_MB = 200

Delivered = dict[int, tuple[float, float]]
"""For each rate that was asked for: what came per second, and the 99th percentile of the lag in ms."""


def run(settings: Settings) -> list[Section]:
    """Start the server, load it by each in turn, and read its log."""
    seconds = 3 if settings.quick else 8
    server = LineWorker([sys.executable, "-m", "benchmarks.load_server"], direct(os.environ))
    try:
        base_url = f"http://127.0.0.1:{server.ask()['port']}/v1"
        lean = _ours(server, base_url, (*RATES, *HIGHER_RATES), seconds, workers=1)
        together = _ours(server, base_url, HIGHER_RATES, seconds, workers=WORKERS)
        costs = _client_costs(base_url)
        guidellm = _guidellm(server, base_url, seconds) if settings.peers else {}
        locust = _locust(server, base_url, seconds) if settings.peers else None
    finally:
        server.close()
    peers = {GUIDELLM.package: GUIDELLM.version, LOCUST.package: LOCUST.version} if settings.peers else {}
    return [
        _rates(lean, guidellm, settings, peers),
        _highest(lean, together, guidellm, locust, settings, peers),
        _costs(costs),
        _memory(settings),
    ]


# Runs.


def _ours(server: LineWorker, base_url: str, rates: Sequence[int], seconds: float, *, workers: int) -> Delivered:
    found: Delivered = {}
    for rate in rates:
        server.ask()
        said = _ask_ours(client="lean", base_url=base_url, rate=rate, seconds=seconds, workers=workers)
        if said is not None:
            found[rate] = _delivered(server.ask()["arrived"], rate)
            if said["client_limit"]:
                print(f"  ours, {workers} × {rate / workers:g}/s, says of itself: {said['client_limit']}", flush=True)
    return found


def _client_costs(base_url: str) -> dict[str, float | None]:
    orders: dict[str, dict[str, Any]] = {
        "lean HTTP": {"client": "lean", "base_url": base_url, "users": 16, "requests": 1600},
        "OpenAIBackend through sample()": {"client": "sampled", "base_url": base_url, "users": 16, "requests": 800},
        "a workload that does nothing": {"client": "nothing", "users": 16, "requests": 8000},
    }
    answers = {name: _ask_ours(**order) for name, order in orders.items()}
    return {name: None if said is None else said["cpu_us"] for name, said in answers.items()}


def _ask_ours(**order: Any) -> dict[str, Any] | None:
    command = [sys.executable, "-m", "benchmarks.load_ours", json.dumps(order)]
    done = subprocess.run(command, cwd=ROOT, env=direct(os.environ), capture_output=True, text=True, check=False)
    if done.returncode:
        shout(f"ours is NOT MEASURED: {done.stderr.strip()[-500:]}")
        return None
    said: dict[str, Any] = json.loads(done.stdout)
    if said["failed"]:
        shout(f"ours, {order}: {said['failed']} requests failed")
    return said


def _guidellm(server: LineWorker, base_url: str, seconds: float) -> Delivered:
    """One run with all rates, since it takes long to start; in the log there is a pause between two of them."""
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
    return {rate: _delivered(arrived, rate) for rate, arrived in zip(RATES, runs, strict=False)}


def _locust(server: LineWorker, base_url: str, seconds: float) -> float | None:
    arguments = [
        *("-f", str(ROOT / "benchmarks" / "load_locust.py"), "--host", base_url.removesuffix("/v1")),
        # Its run time counts from when its process starts, imports included.
        *("--headless", "--only-summary", "--users", "64", "--spawn-rate", "64", "--run-time", f"{seconds + 8:g}s"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        runs = list(_runs_of(server, LOCUST, "locust", arguments, folder))
    return max((_rate(arrived) for arrived in runs), default=None)


def _runs_of(server: LineWorker, peer: Peer, program: str, arguments: Sequence[str], folder: str) -> list[list[float]]:
    """Let a peer run, and return the server's log of it, cut where nothing came for a while."""
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
    """Requests per second, without the first and the last tenth: they start and stop."""
    inner = sorted(arrived)[len(arrived) // 10 : len(arrived) - len(arrived) // 10]
    return (len(inner) - 1) / (inner[-1] - inner[0]) if len(inner) > 1 else 0.0


def _delivered(arrived: Sequence[float], rate: float) -> tuple[float, float]:
    ordered = sorted(arrived)
    if len(ordered) < 2:
        return 0.0, float("inf")
    offsets = [instant - number / rate for number, instant in enumerate(ordered)]
    lags = sorted(offset - min(offsets) for offset in offsets)
    return _rate(ordered), 1000 * lags[-(-99 * len(lags) // 100) - 1]


# Results.


def _rates(ours: Delivered, guidellm: Delivered, settings: Settings, peers: dict[str, str]) -> Section:
    rows = []
    for rate in (*RATES, *HIGHER_RATES):
        mine, theirs = ours.get(rate), guidellm.get(rate)
        values = {
            "ours, per second": mine and mine[0],
            "guidellm, per second": theirs and theirs[0],
            "ours, p99 lag in ms": mine and mine[1],
            "guidellm, p99 lag in ms": theirs and theirs[1],
        }
        checks = []
        if settings.peers and rate in COMPARED_RATES:
            lags = ratio(values["ours, p99 lag in ms"], values["guidellm, p99 lag in ms"])
            checks.append(Check("lag, ours ÷ guidellm", lags, LAG_SHARE))
        rows.append(Row(f"{rate:,} per second", values, tuple(checks)))
    return Section("Delivered load, one process of ours", "by the server's log", tuple(rows), peers)


def _highest(
    alone: Delivered,
    together: Delivered,
    guidellm: Delivered,
    locust: float | None,
    settings: Settings,
    peers: dict[str, str],
) -> Section:
    one, several, theirs = (_most(each) for each in (alone, together, guidellm))
    checks: tuple[Check, ...] = ()
    if settings.peers:
        checks = (
            Check(f"ours, {WORKERS} processes ÷ guidellm", ratio(several, theirs), TIMES_GUIDELLM, at_least=True),
            Check(f"ours, {WORKERS} processes ÷ locust, one", ratio(several, locust), TIMES_LOCUST, at_least=True),
        )
    values = {
        "ours, one process": one,
        f"ours, {WORKERS} processes": several,
        "guidellm": theirs,
        "locust, FastHttpUser": locust,
    }
    return Section("Highest delivered rate", "per second, by the server's log", (Row("SSE", values, checks),), peers)


def _most(delivered: Delivered) -> float | None:
    return max((rate for rate, _ in delivered.values()), default=None)


def _costs(costs: dict[str, float | None]) -> Section:
    rows = tuple(Row(name, {"µs": cost}) for name, cost in costs.items())
    return Section("What a request costs the client, generator included", "µs of CPU", rows)


def _memory(settings: Settings) -> Section:
    requests = MILLION // 20 if settings.quick else MILLION
    said = _ask_ours(client="nothing", users=100, requests=requests)
    peak = None if said is None else said["peak_mb"]
    check = Check("MB at most", peak, MEMORY_MB)
    row = Row(f"{requests:,} requests, exact percentiles", {"peak": peak}, (check,))
    return Section("Memory of a run", "MB, resident", (row,))
