"""
Read mutated streams of all recorded servers in two ways, and compare: `python -m benchmarks.events`.

One way parses the JSON of every event. The other is that of the backends, which skips it where it can.
The tests do the same for fewer streams, with other seeds.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from benchmarks.worker import ROOT

FIRST_SEED = 1_000_000
BATCH = 1_000


def run_batch(first_seed: int) -> tuple[list[str], int]:
    """Compare one batch of streams, and return what differs, and how many texts were read without JSON."""
    sys.path.insert(0, str(ROOT))
    from tests.backends.http.streams import READ, difference, servers

    known = servers()
    READ.clear()
    found = [difference(seed, known) for seed in range(first_seed, first_seed + BATCH)]
    return [each for each in found if each is not None], READ["texts without JSON"]


def main() -> int:
    """Compare all streams, in several processes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.events", description=__doc__)
    parser.add_argument("--streams", type=int, default=300_000, help="how many streams (%(default)s)")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="how many processes (%(default)s)")
    arguments = parser.parse_args()
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.streams, BATCH)
    total: Counter[str] = Counter()
    started = time.monotonic()
    with ProcessPoolExecutor(arguments.processes, get_context("spawn")) as pool:
        for differences, texts in pool.map(run_batch, seeds):
            total.update(streams=BATCH, differences=len(differences), texts=texts)
            for difference in differences[:3]:
                print(difference, file=sys.stderr)
            print(f"\r{total['streams']:,} streams", end="", file=sys.stderr, flush=True)
    print(
        f"\n{total['streams']:,} mutated streams, {total['texts']:,} texts read without JSON, "
        f"{total['differences']} differences, {time.monotonic() - started:.0f} s"
    )
    return 1 if total["differences"] else 0


if __name__ == "__main__":
    sys.exit(main())
