"""Measure what it takes to start: imports and `--help`, against what they stand on. Each in a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.report import Check, Row, Section, Settings, ratio, shout
from benchmarks.worker import ROOT

TYPER = """
import typer
app = typer.Typer()
app.command("one")(lambda: None)
app.command("two")(lambda: None)
app(["--help"])
"""
CODE = {
    "bare": "pass",
    "dependencies": "import anyio, attrs, tenacity, structlog",
    # Uses a name, because a lazy import would only delay the work.
    "ours": "import sampling; sampling.RejectionSamplingStrategy",
    "OpenAIBackend": "from sampling import OpenAIBackend",
    "OpenAIBackend(…)": "from sampling import OpenAIBackend; OpenAIBackend('http://127.0.0.1:1/v1', 'key', 'model')",
    "typer": TYPER,
    "help": "import sys; sys.argv = ['sampling', '--help']; from sampling.cli import main; main()",
}


@dataclass(frozen=True)
class Start:
    """Something that is started, what it is compared with, and how many times that it may take."""

    title: str
    name: str
    base: str
    bound: float


STARTS = (
    Start("import sampling", "ours", "dependencies", 1.5),
    Start("import OpenAIBackend", "OpenAIBackend", "dependencies", 1.5),
    # Half of 2.9, which it was when httpx2 was imported for every backend.
    Start("make an OpenAIBackend", "OpenAIBackend(…)", "dependencies", 1.45),
    Start("sampling --help", "help", "typer", 2.0),
)


def run(settings: Settings) -> list[Section]:
    """Start the interpreters in turns. What a bare interpreter takes is subtracted."""
    times: dict[str, list[float]] = {name: [] for name in CODE}
    # With bytecode, as installed packages have it. This shell may forbid to write it.
    with TemporaryDirectory() as bytecode:
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": bytecode}
        for attempt in range(6 if settings.quick else 26):
            for name, code in CODE.items():
                if (took := _start(code, env)) is not None and attempt:  # The first round compiles.
                    times[name].append(took)
    for name, found in times.items():
        if not found:
            shout(f"{name} FAILED and is NOT MEASURED")
    bare = min(times["bare"], default=0.0)
    least = {name: min(found) - bare if found else None for name, found in times.items()}
    rows = [
        Row(
            start.title,
            {"it": least[start.name], "what it stands on": least[start.base]},
            (Check("it ÷ what it stands on", ratio(least[start.name], least[start.base]), start.bound),),
            {"medians": {name: median(times[name]) for name in (start.name, start.base) if times[name]}},
        )
        for start in STARTS
    ]
    unit = f"CPU ms, the least of all rounds, without the {bare:.0f} ms of a bare interpreter"
    return [Section("Start", unit, tuple(rows))]


def _start(code: str, env: Mapping[str, str]) -> float | None:
    """Return the CPU time of a process. Its waiting depends on what else the machine does."""
    before = getrusage(RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, check=False)
    after = getrusage(RUSAGE_CHILDREN)
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took * 1e3 if done.returncode == 0 else None
