"""Workloads that other processes can import."""

import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from sampling.load import Answered, Arrival, Workload


async def quick(arrival: Arrival) -> Answered:
    """Answer after a moment, and print, which must not get into anyone's way."""
    print("answering", arrival)  # noqa: T201 - that is what is tested
    await anyio.sleep(0.001)
    return Answered(valid=arrival.number % 5 != 0, output_tokens=3)


async def failing(arrival: Arrival) -> None:
    """Fail."""
    raise RuntimeError("no \x1b[31m luck")


async def dying(arrival: Arrival) -> None:
    """Take the process down."""
    os._exit(3)


async def block_once(arrival: Arrival) -> None:
    """Block the event loop, at one of the requests."""
    if arrival.index == 3:
        time.sleep(0.7)  # noqa: ASYNC251 - that is what is tested


@asynccontextmanager
async def with_client(delay_s: float) -> AsyncGenerator[Workload]:
    """Open something, and close it again."""

    async def workload(arrival: Arrival) -> None:
        await anyio.sleep(delay_s)

    yield workload


def not_there() -> Workload:
    """Fail before there is anything to send."""
    raise LookupError("no such server")
