"""Wrap a backend in layers that retry, limit, cache and record."""

import logging
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import structlog

from sampling import RejectionSamplingStrategy, SamplingResult
from sampling.backends.layers import Cached, Limited, Recorded, Replayed, Retrying
from sampling.backends.simulated import SimulatedBackend
from sampling.protocols import BackendLike

STRATEGY = RejectionSamplingStrategy(loop_budget=4, concurrency_budget=4)

SERVER = SimulatedBackend(
    seed=5,
    slots=2,
    max_queued=0,
    pass_probability=0.3,
    output_tokens=12,
    time_to_first_token_s=0.05,
    time_per_token_s=0.005,
)
"""A stand-in for a model server with two slots. It refuses a third request."""


async def ask(backend: BackendLike) -> SamplingResult[str]:
    """Make the same call with any backend. Its breadth of 4 is twice the capacity of the server."""
    result = await STRATEGY.sample("A line about rain.", None, backend, SERVER.requirements)
    requests = sum(attempt.requests for attempt in result.attempts)
    print(f"{result}\n          {requests} requests, {SERVER.statistics.rejected} refused so far\n")
    return result


async def main() -> None:
    """Wrap the same server in different layers."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print("bare:     a refusal costs an attempt, and a subsample that is refused again and again is soon at its end")
    await ask(SERVER)
    print("retrying: it costs a request and some time, and no attempt")
    await ask(Retrying(SERVER, attempts=10, backoff_s=0.05, seed=1))
    print("limited:  nothing is refused any more")
    await ask(Retrying(Limited(SERVER, max_in_flight=2)))
    print("cached:   the second time, the same samples come from memory, at once and for nothing")
    cached = Cached(Retrying(Limited(SERVER, max_in_flight=2)))
    await ask(cached)
    await ask(cached)
    print("recorded: and replayed, without the server: the same answers, losers and winner")
    with TemporaryDirectory() as folder:
        cassette = Path(folder) / "rain.jsonl"
        recorded = await ask(Retrying(Limited(Recorded(SERVER, cassette), max_in_flight=2)))
        replayed = await ask(Retrying(Limited(Replayed(cassette), max_in_flight=2)))
        print("          the same text:", recorded.text == replayed.text)


if __name__ == "__main__":
    anyio.run(main)
