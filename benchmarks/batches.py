"""Measure the memory of items that wait for a batch: `python -m benchmarks.batches [ITEMS] [asyncio|trio]`."""

import sys

import anyio

from benchmarks.resident import peak_bytes
from sampling import OpenAIBackend, RejectionSamplingStrategy
from sampling.fanout import BatchEngine, open_fan_out
from sampling.testing.batch_servers import BatchServer

ITEMS = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
LOOP = sys.argv[2] if len(sys.argv) > 2 else "asyncio"


async def main():
    server = BatchServer(latency_s=1e9)
    backend = OpenAIBackend(server.url, "key", "model", transport=server.transport)
    before = peak_bytes()
    engine = BatchEngine(window=ITEMS + 1, linger_s=1e6)
    full = anyio.Event()

    def items():
        for number in range(ITEMS):
            yield f"question {number}"
        full.set()

    async with open_fan_out(RejectionSamplingStrategy(), items(), None, backend, engine=engine) as run:
        await full.wait()
        await anyio.sleep(1)
        print(f"{ITEMS:,} items wait, with {(peak_bytes() - before) / 1024 / ITEMS:.1f} KiB each ({LOOP})")
        run.cancel()


anyio.run(main, backend=LOOP)
