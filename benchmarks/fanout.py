"""What a fan-out costs: against aiometer driving the same calls, with a journal and without, resumed, and at length."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from statistics import median

from benchmarks.peers import Peer
from benchmarks.report import Check, Row, Section, Settings, ratio, shout
from benchmarks.worker import ROOT, NotMeasuredError

AIOMETER = Peer(
    "aiometer",
    "1.0.0",
    others=tuple((package, version(package)) for package in ("anyio", "attrs", "structlog", "tenacity")),
)
JOURNAL_SHARE = 0.4
RESUME_BOUND = 5.0
RESUME_BOUND_S = 1.0
MEMORY_BOUND = 150.0
LENGTH_BOUND = 1.2


def run(settings: Settings) -> list[Section]:
    """Measure in fresh processes, round by round."""
    items = 10_000 if settings.quick else 100_000
    rounds = 2 if settings.quick else 3
    # In the checkout: a folder for temporary files may be in memory, where syncing costs nothing.
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".fanout-") as folder:
        speed = _speed(Path(folder), items, rounds, settings)
        resume = _resume(Path(folder), items, rounds)
    return [speed, resume, _length(100_000 if settings.quick else 1_000_000)]


def _speed(folder: Path, items: int, rounds: int, settings: Settings) -> Section:
    ways = ["ours", "journal", *(["aiometer"] if settings.peers else [])]
    measured: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds):
        for way in ways:
            journal = folder / f"{number}.db" if way == "journal" else None
            found = _measure(way, items, journal)
            if found is not None:
                measured[way].append(items / found["seconds"])
    rates = {way: max(found) if found else None for way, found in measured.items()}
    checks: tuple[Check, ...] = ()
    if settings.peers:
        checks = (
            Check("ours ÷ aiometer", ratio(rates["ours"], rates["aiometer"]), 1.0, at_least=True),
            Check("journal ÷ aiometer", ratio(rates["journal"], rates["aiometer"]), JOURNAL_SHARE, at_least=True),
        )
    details = {"medians": {way: median(found) for way, found in measured.items() if found}}
    peers = {AIOMETER.package: AIOMETER.version} if settings.peers else {}
    row = Row(f"{items:,} items, 64 at once", dict(rates), checks, details)
    return Section("Fan-out", "items a second, the most of all rounds", (row,), peers)


def _resume(folder: Path, items: int, rounds: int) -> Section:
    journal = folder / "0.db"
    measured: dict[str, list[float]] = {"resume": [], "sqlite": []}
    for _ in range(rounds):
        for way, found in measured.items():
            one = _measure(way, items, journal)
            if one is not None:
                found.append(one["seconds"])
    best = {way: min(found) if found else None for way, found in measured.items()}
    per_100_000 = None if best["resume"] is None else best["resume"] * 100_000 / items
    checks = (
        Check("resume ÷ sqlite", ratio(best["resume"], best["sqlite"]), RESUME_BOUND),
        Check("s per 100,000", per_100_000, RESUME_BOUND_S),
    )
    return Section(
        "Going on with a finished run", "s, the least of all rounds", (Row(f"{items:,} items", dict(best), checks),)
    )


def _length(items: int) -> Section:
    found = _measure("stream", items, None) or {}
    values = {
        "µs at 10,000": _micro(found.get("few")),
        f"µs at {items:,}": _micro(found.get("many")),
        "MB": found.get("megabytes"),
    }
    checks = (
        Check("long ÷ short", ratio(found.get("many"), found.get("few")), LENGTH_BOUND),
        Check("MB resident", found.get("megabytes"), MEMORY_BOUND),
    )
    return Section(
        "A long stream", "CPU time per item, and the most memory", (Row(f"{items:,} items", values, checks),)
    )


def _micro(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6


def _measure(way: str, items: int, journal: Path | None) -> dict[str, float] | None:
    try:
        python = AIOMETER.python() if way == "aiometer" else Path(sys.executable)
    except NotMeasuredError as error:
        shout(f"{way} is NOT MEASURED: {error}")
        return None
    command = [str(python), "-m", "benchmarks.fanout_side", way, str(items), *([str(journal)] if journal else [])]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SAMPLING_PLUGINS": "off"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        shout(f"{way} is NOT MEASURED: {done.stderr.strip()[-500:]}")
        return None
    return json.loads(done.stdout.splitlines()[-1])
