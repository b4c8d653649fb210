"""Measure `import sampling` against the import of its dependencies. Every import runs in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

from benchmarks.report import Check, Row, Section, Settings, ratio, shout
from benchmarks.worker import ROOT

BOUND = 2.0
CODE = {
    "bare": "pass",
    "dependencies": "import anyio, attrs, tenacity, structlog",
    # Uses a name, because a lazy import would only delay the work.
    "ours": "import sampling; sampling.RejectionSamplingStrategy",
}


def run(settings: Settings) -> list[Section]:
    """Start the interpreters in turns. The time that a bare interpreter takes is subtracted."""
    times: dict[str, list[float]] = {name: [] for name in CODE}
    for attempt in range(6 if settings.quick else 26):
        for name, code in CODE.items():
            if (took := _start(code)) is not None and attempt:  # The first round may compile bytecode.
                times[name].append(took)
    if not times["ours"]:
        shout("import sampling FAILED and is NOT MEASURED")
    least = {name: min(taken) if taken else None for name, taken in times.items()}
    bare = least["bare"] or 0
    values = {name: None if (time_ := least[name]) is None else time_ - bare for name in ("ours", "dependencies")}
    check = Check("ours ÷ dependencies", ratio(values["ours"], values["dependencies"]), BOUND)
    details = {"medians": {name: median(taken) for name, taken in times.items() if taken}}
    row = Row("import", {**values, "bare interpreter": bare}, (check,), details)
    return [Section("Import", "ms, the least of all rounds, without the bare interpreter", (row,))]


def _start(code: str) -> float | None:
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    return (time.perf_counter() - started) * 1e3 if done.returncode == 0 else None
