"""
Measure the overhead of a fan-out.

It is compared with aiometer, with and without a journal, when resumed, and over a long stream.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers import Peer
from benchmarks.report import Check, Row, Section, Settings, ratio, shout
from benchmarks.worker import ROOT, NotMeasuredError

AIOMETER = Peer(
    "aiometer",
    "1.0.0",
    others=tuple((package, version(package)) for package in ("anyio", "attrs", "structlog", "tenacity")),
)
AT_ONCE = (64, 256)
"""The items in flight. The journal writes as many in one transaction."""

JOURNAL_SHARE = 0.4
JOURNAL_COST = 1.4
RESUME_BOUND = 5.0
RESUME_BOUND_S = 1.0
MEMORY_BOUND = 150.0
LENGTH_BOUND = 1.2


def run(settings: Settings) -> list[Section]:
    """Measure in fresh processes."""
    items = 10_000 if settings.quick else 100_000
    # In the checkout, because a temporary folder may be in memory, where a sync is free.
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".fanout-") as folder:
        speed = _speed(folder, items, settings)
        resume = _resume(Path(folder) / "resume.db", items)
    return [speed, resume, _length(100_000 if settings.quick else 1_000_000)]


def _speed(folder: str, items: int, settings: Settings) -> Section:
    peers = {AIOMETER.package: AIOMETER.version} if settings.peers else {}
    rows = tuple(_speed_of(at_once, folder, items, settings) for at_once in AT_ONCE)
    return Section("Fan-out", "items a second, the median of all turns", rows, peers)


def _speed_of(at_once: int, folder: str, items: int, settings: Settings) -> Row:
    found: dict[str, list[float]] = _measure("versus", items, folder, at_once, peer=settings.peers) or {}
    turns = {way: [items / len(seconds) / one for one in seconds] for way, seconds in found.items()}
    rates = {way: median(turns[way]) if way in turns else None for way in ("ours", "journal", "aiometer")}
    checks = (Check("ours ÷ journal", ratio(rates["ours"], rates["journal"]), JOURNAL_COST),)
    if settings.peers:
        checks += (
            Check("ours ÷ aiometer", ratio(rates["ours"], rates["aiometer"]), 1.0, at_least=True),
            Check("journal ÷ aiometer", ratio(rates["journal"], rates["aiometer"]), JOURNAL_SHARE, at_least=True),
        )
    else:
        del rates["aiometer"]
    runs = max(map(len, turns.values()), default=1)
    name = f"{runs} runs of {items // runs:,} items, {at_once} at once"
    return Row(name, dict(rates), checks, {"turns": turns})


def _resume(journal: Path, items: int) -> Section:
    _measure("finish", items, journal)
    measured: dict[str, list[float]] = {"resume": [], "sqlite": []}
    for _ in range(3):
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


def _measure(way: str, items: int, where: Path | str | None, at_once: int = AT_ONCE[0], *, peer: bool = False) -> Any:
    try:
        python = AIOMETER.python() if peer else Path(sys.executable)
    except NotMeasuredError as error:
        shout(f"{way} is NOT MEASURED: {error}")
        return None
    command = [str(python), "-m", "benchmarks.fanout_side", way, str(items), *([str(where)] if where else [])]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SAMPLING_PLUGINS": "off", "AT_ONCE": str(at_once)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        shout(f"{way} is NOT MEASURED: {done.stderr.strip()[-500:]}")
        return None
    return json.loads(done.stdout.splitlines()[-1])
