"""
Count the bytecode instructions of an attempt.

Counts have no noise, as times do. They show where the time of `core` goes, and whether a change helps.
An instruction takes some ten nanoseconds.

`python -m benchmarks.instructions 4×8` lists the functions of one scenario, the longest first.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the floor, which it is compared to, runs on asyncio only
import sys
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from benchmarks.core import TARGETS
from benchmarks.report import Row, Section, Settings
from benchmarks.scenarios import Prepare, Scenario, Tally

SCENARIOS = tuple(scenario for scenario, _, _ in TARGETS)
WARM_UP, CALLS = 10, 10
PARTS = {"sampling": "ours", "anyio": "anyio", "sniffio": "anyio", "asyncio": "asyncio", "selectors": "asyncio"}
GENERATED = "<attrs generated methods "  # followed by the class: the file name of code that attrs generates
OTHER = "other"  # the backend and the check of the benchmark, and the standard library


def run(_: Settings) -> list[Section]:
    """Count the instructions of our engine and of the floor."""
    from benchmarks import floor, ours

    rows = []
    for scenario in SCENARIOS:
        parts: Counter[str] = Counter()
        for code, instructions in count(ours.prepare, scenario).items():
            parts[part_of(code.co_filename)] += instructions
        values: dict[str, float | None] = {part: parts[part] for part in ("ours", "anyio", "asyncio", OTHER)}
        at_least = count(floor.prepare, scenario).total()
        rows.append(Row(scenario.name, {**values, "all of it": parts.total(), "floor, all of it": at_least}))
    return [Section("Instructions of the interpreter", "an attempt, on asyncio", tuple(rows))]


def tracer(found: Counter[CodeType]) -> Callable[[FrameType, str, Any], Any]:
    """Return a function for `sys.settrace` that counts the instructions of each function."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            found[frame.f_code] += 1
        return trace

    return trace


def count(prepare: Prepare, scenario: Scenario) -> Counter[CodeType]:
    """Return the instructions per attempt, by function."""
    found: Counter[CodeType] = Counter()

    async def main() -> None:
        call = prepare(scenario, Tally(), lambda: asyncio.sleep(0))
        for _ in range(WARM_UP):
            await call()
        sys.settrace(tracer(found))
        try:
            for _ in range(CALLS):
                await call()
        finally:
            sys.settrace(None)

    asyncio.run(main())
    return Counter({code: instructions / (CALLS * scenario.attempts) for code, instructions in found.items()})


def part_of(file: str) -> str:
    """Return which library a file belongs to."""
    words = file.removeprefix(GENERATED).replace(".", "/").split("/")
    return next((PARTS[word] for word in reversed(words) if word in PARTS), OTHER)


def name_of(code: CodeType) -> str:
    """Return the name of a function, with its class."""
    file = code.co_filename
    if file.startswith(GENERATED):
        return f"{file.removeprefix(GENERATED).rstrip('>').rpartition('.')[2]}.{code.co_qualname}"
    return code.co_qualname


def main() -> None:
    """List the functions of one scenario."""
    from benchmarks import ours

    known = {scenario.name.split()[0]: scenario for scenario in SCENARIOS}
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in known:
        sys.exit(f"which scenario? One of {', '.join(known)}")
    for code, instructions in count(ours.prepare, known[name]).most_common(60):
        print(f"{instructions:8.1f}  {part_of(code.co_filename):8}  {name_of(code)}")


if __name__ == "__main__":
    main()
