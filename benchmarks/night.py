"""
Run many items through a night of misfortunes, in virtual time, and compare it with a quiet night.

There are three outages, two storms of 429, two kills by a real SIGKILL, and a disk that is full: the system refuses
every write. Each process is followed by another, as by a supervisor. What was paid is counted by the server.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.night_side import DISK_FULL, Draw
from benchmarks.report import Check, Row, Section, Settings
from benchmarks.worker import ROOT
from sampling.fanout.journal import Journal, JournalSummary

SPEND_BOUND = 1.02
_MAX_PROCESSES = 20
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
"""A folder in memory. A kill loses nothing of it, and a hundred thousand syncs would take an hour."""


@dataclass(frozen=True)
class Plan:
    """The misfortunes of a night, in seconds from its beginning."""

    items: int
    at_once: int
    outages: tuple[tuple[float, float], ...] = ()
    storms: tuple[tuple[float, float], ...] = ()
    kills: tuple[float, ...] = ()
    full_disks: tuple[float, ...] = ()

    @classmethod
    def bad(cls, items: int, at_once: int) -> Plan:
        """Return a night with everything in it, whatever its length."""
        # An item takes about two seconds, so the night would take this long without misfortunes.
        length_s = items * 2.0 / at_once
        starts = [length_s * part for part in (0.1, 0.3, 0.5)]
        outages = [(start + 400 * number, start + 400 * number + 200) for number, start in enumerate(starts)]
        return cls(
            items=items,
            at_once=at_once,
            outages=tuple(outages),
            storms=tuple((end + length_s * 0.05, end + length_s * 0.05 + 150) for _, end in outages[:2]),
            kills=(outages[0][1] + length_s * 0.02, outages[1][0] + 100),
            full_disks=(outages[2][1] + length_s * 0.1,),
        )


@dataclass(frozen=True)
class Outcome:
    """The end of a night."""

    summary: JournalSummary
    page: str
    paid_tokens: int
    """The tokens of all requests that the server accepted."""

    processes: tuple[int, ...]
    """The exit codes of the processes, in their order."""

    real_s: float


def quiet_tokens(items: int) -> int:
    """Return what a night without misfortunes costs, without running it."""
    total = 0
    for number in range(items):
        for attempt in range(3):
            draw = Draw.of(f"question {number}", attempt)
            total += draw.tokens
            if draw.is_good:
                break
    return total


def run_night(plan: Plan, journal: Path) -> Outcome:
    """Run a night to its end, in as many processes as it takes."""
    began, paid, codes, night_s = time.perf_counter(), 0, [], 0.0
    while not codes or codes[-1] != 0:
        if len(codes) == _MAX_PROCESSES:
            raise RuntimeError(f"the night has no end: {codes}")
        settings = {
            "items": plan.items,
            "at_once": plan.at_once,
            "journal": str(journal),
            "began_s": night_s,
            "outages": plan.outages,
            "storms": plan.storms,
            "kill_at_s": next((when for when in plan.kills if when > night_s), None),
            "full_at_s": next((when for when in plan.full_disks if when > night_s), None),
        }
        command = [sys.executable, "-m", "benchmarks.night_side", json.dumps(settings)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode not in {0, DISK_FULL, -9}:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-2000:]}")
        requests = [line.split() for line in done.stdout.splitlines()]
        paid += sum(int(tokens) for _, tokens in requests)
        codes.append(done.returncode)
        misfortunes = [settings["kill_at_s"] if done.returncode == -9 else settings["full_at_s"]]
        # A supervisor takes half a minute to start the next process.
        night_s = max([night_s, *[when for when in misfortunes if when and done.returncode]]) + 30
    ended = Journal(journal)
    return Outcome(ended.summary(), ended.to_html(), paid, tuple(codes), time.perf_counter() - began)


def run(settings: Settings) -> list[Section]:
    """Run a bad night and a quiet one."""
    plan = Plan.bad(5_000, 32) if settings.quick else Plan.bad(100_000, 64)
    quiet = replace(plan, outages=(), storms=(), kills=(), full_disks=())
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="night-") as folder, ThreadPoolExecutor() as threads:
        # Both at once, because each is a process that computes for minutes, and virtual time does not mind.
        bad_night = threads.submit(run_night, plan, Path(folder) / "bad.db")
        calm = run_night(quiet, Path(folder) / "quiet.db")
        bad = bad_night.result()
    rows = []
    for name, night in (("quiet", calm), ("bad", bad)):
        values: dict[str, float | None] = {
            "answered": night.summary.succeeded,
            "processes": len(night.processes),
            "tokens": night.paid_tokens,
            "real s": night.real_s,
        }
        checks = [Check("answered", night.summary.succeeded, plan.items, at_least=True)]
        if night is bad:
            checks.append(Check("spend ÷ quiet", bad.paid_tokens / calm.paid_tokens, SPEND_BOUND))
        rows.append(Row(f"{plan.items:,} items, a {name} night", values, tuple(checks)))
    return [Section("A night", "three outages, two storms, two kills, one full disk", tuple(rows))]
