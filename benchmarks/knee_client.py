"""
One load of a server with our client, as JSON: `python -m benchmarks.knee_client`, with its order as JSON.

With a rate this is the method of `vllm bench serve`: Poisson arrivals, no limit on requests in flight, and percentiles
over the answered requests from when they were sent.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import anyio

from sampling.load import ClosedLoop, HttpWorkload, OpenLoop, run_load


async def main(order: dict[str, Any]) -> dict[str, Any]:
    """Generate the traffic of the order."""
    seconds, drain_s = order["seconds"], order.get("drain_s", 60)
    profile = (
        OpenLoop(rate=order["rate"], duration_s=seconds, arrivals="poisson", max_in_flight=100_000, drain_s=drain_s)
        if "rate" in order
        else ClosedLoop(users=order["users"], horizon_s=seconds, drain_s=drain_s)
    )
    headers = {"authorization": f"Bearer {order['key']}"}
    async with HttpWorkload(order["url"], json.dumps(order["body"]).encode(), headers=headers) as workload:
        report = await run_load(workload, profile)
    return {
        "p50_s": report.service_time.p50,
        "p95_s": report.service_time.p95,
        "answered_rate": report.answered_rate,
        "sent": report.admitted,
        "failed": report.failed + report.cancelled,
    }


if __name__ == "__main__":
    print(json.dumps(anyio.run(main, json.loads(sys.argv[1]))))
