"""
Run the benchmark suites: `python -m benchmarks`.

This prints the tables, stores the results, and fails if a target is missed.
A new suite is one module with `run(settings) -> list[Section]`, and one line in `SUITES`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import (
    accuracy,
    breadth,
    calibration,
    closed_tab,
    core,
    fanout,
    http,
    imports,
    instructions,
    knee,
    load,
    losers,
    memory,
    night,
    searches,
    smollm2,
    virtual,
    wire,
)
from benchmarks.report import Section, Settings, Suite, markdown, missed, table, write

SUITES: dict[str, Suite] = {
    "core": core.run,
    "instructions": instructions.run,
    "breadth": breadth.run,
    "import": imports.run,
    "memory": memory.run,
    "http": http.run,
    "wire": wire.run,
    "fanout": fanout.run,
    "night": night.run,
    "accuracy": accuracy.run,
    "smollm2": smollm2.run,
    "losers": losers.run,
    "closed-tab": closed_tab.run,
    "load": load.run,
    "knee": knee.run,
    "virtual": virtual.run,
    "calibration": calibration.run,
    "searches": searches.run,
}
RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Parse the arguments, run the suites, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", metavar="SUITE,…", default=",".join(SUITES), help="which suites, of %(default)s")
    parser.add_argument("--quick", action="store_true", help="few and short rounds; the results are not kept")
    parser.add_argument("--no-peers", action="store_true", help="install and measure no peers, and skip their targets")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown, for the documentation")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    if unknown := set(names) - set(SUITES):
        parser.error(f"no such suite: {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    settings = Settings(quick=arguments.quick, peers=not arguments.no_peers)

    sections: list[Section] = []
    for name in names:
        found = SUITES[name](settings)
        sections += found
        for section in found:
            print(markdown(section) if arguments.markdown else table(section), end="\n\n", flush=True)
        if not settings.quick:
            write(RESULTS / f"{name}.json", name, found, settings)

    misses = missed(sections)
    for miss in misses:
        print(f"MISSED  {miss}")
    targets = sum(len(row.checks) for section in sections for row in section.rows)
    print(f"{targets - len(misses)} of {targets} targets met")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
