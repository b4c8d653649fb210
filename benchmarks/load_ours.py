"""
Our load generator, in its own process.

Run it as `python -m benchmarks.load_ours`, with its order as JSON.
It prints its own numbers as JSON. The delivered load is read from the log of the server instead.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from benchmarks.http_server import MODEL, QUESTION
from benchmarks.resident import peak_bytes
from sampling import RejectionSamplingStrategy
from sampling.backends.openai import OpenAIBackend
from sampling.load import (
    Arrival,
    ClosedLoop,
    HttpWorkload,
    ImportedWorkload,
    OpenLoop,
    Workload,
    run_load,
    strategy_workload,
)

BODY = json.dumps(
    {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
).encode()


@asynccontextmanager
async def lean(base_url: str) -> AsyncGenerator[Workload]:
    """Open a workload that posts and reads, like locust."""
    async with HttpWorkload(f"{base_url}/chat/completions", BODY) as workload:
        yield workload


@asynccontextmanager
async def sampled(base_url: str) -> AsyncGenerator[Workload]:
    """Open a workload that calls a strategy, like an application."""
    async with OpenAIBackend(base_url, "key", MODEL) as backend:
        yield strategy_workload(RejectionSamplingStrategy(), [QUESTION], None, backend)


async def nothing(arrival: Arrival) -> None:
    """Return at once."""


async def main(order: dict[str, Any]) -> dict[str, Any]:
    """Generate the traffic of the order."""
    workload = (
        nothing
        if order["client"] == "nothing"
        else ImportedWorkload(f"benchmarks.load_ours:{order['client']}", {"base_url": order["base_url"]})
    )
    profile = (
        OpenLoop(rate=order["rate"], duration_s=order["seconds"], max_in_flight=order.get("max_in_flight", 512))
        if "rate" in order
        else ClosedLoop(users=order["users"], requests=order.get("requests"), horizon_s=order.get("seconds"))
    )
    started = time.process_time()
    report = await run_load(workload, profile, workers=order.get("workers", 1))
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = time.process_time() - started + children.ru_utime + children.ru_stime
    return {
        "sent": report.admitted,
        "failed": report.failed + report.cancelled,
        "dropped": report.dropped,
        "lag_p99_ms": None if report.schedule_lag.p99 is None else report.schedule_lag.p99 * 1000,
        "latency_p99_ms": None if report.latency.p99 is None else report.latency.p99 * 1000,
        "client_limit": report.client_limit,
        "cpu_s": cpu_s,
        "cpu_us": 1e6 * cpu_s / max(1, report.admitted),
        "peak_mb": peak_bytes() / 1e6,
    }


if __name__ == "__main__":
    print(json.dumps(anyio.run(main, json.loads(sys.argv[1]))))
