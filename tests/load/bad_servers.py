"""Servers that must not pass: they hang, fail, shed, stall or fall behind."""

import math
from collections.abc import Awaitable, Callable

import anyio
import attrs

from sampling.load import Answered, Arrival, Slo

Server = Callable[[Arrival], Awaitable[object]]

RATE = 50.0
SLO = Slo(p95_s=1.0)


@attrs.frozen
class BadServer:
    """A server, and the limits that it breaks at 50 per second."""

    name: str
    make: Callable[[], Server]
    slo: Slo = SLO
    max_in_flight: int = 1024
    serves_users: bool = False
    """True if users who wait for their answers slow it down to what it can do, so that their limits hold."""


async def answer(seconds: float = 0.05) -> None:
    await anyio.sleep(seconds)


async def hang() -> None:
    await anyio.sleep(math.inf)


def by_share(share: float, then: Callable[[], Awaitable[object]]) -> Callable[[], Server]:
    """Do something else for a share of the requests, drawn at random."""

    def make() -> Server:
        async def server(arrival: Arrival) -> None:
            await (then() if arrival.rng.random() < share else answer())

        return server

    return make


async def refuse() -> None:
    raise ConnectionRefusedError("nobody listens")


async def fail_late() -> None:
    await anyio.sleep(0.5)
    raise RuntimeError("out of memory")


def while_(when: Callable[[float], bool], then: Callable[[], Awaitable[object]]) -> Callable[[], Server]:
    """Do something else while the time of the measurement is in a range."""

    def make() -> Server:
        async def server(arrival: Arrival) -> None:
            await (then() if when(arrival.intended_s) else answer())

        return server

    return make


def queue(rate: float, *, most: int | None = None) -> Callable[[], Server]:
    """Serve one request after the other at a limited rate, and refuse the rest if the queue has a limit."""

    def make() -> Server:
        free_at = 0.0

        async def server(arrival: Arrival) -> None:
            nonlocal free_at
            now = anyio.current_time()
            if most is not None and (free_at - now) * rate > most:
                raise ConnectionError("503: try again later")
            free_at = max(free_at, now) + 1 / rate
            await anyio.sleep_until(free_at)

        return server

    return make


def slots(count: int, seconds: float) -> Callable[[], Server]:
    """Serve a limited number of requests at once, and let the others wait."""

    def make() -> Server:
        limiter = anyio.Semaphore(count)

        async def server(arrival: Arrival) -> None:
            async with limiter:
                await anyio.sleep(seconds)

        return server

    return make


def freezes(every_s: float, for_s: float) -> Callable[[], Server]:
    """Stand still for a while, again and again."""

    def make() -> Server:
        async def server(arrival: Arrival) -> None:
            into_s = anyio.current_time() % every_s
            if into_s < for_s:
                await anyio.sleep(for_s - into_s)
            await answer()

        return server

    return make


def leaks() -> Server:
    """Lose one of ten workers every two seconds, and never get it back."""
    limiter = anyio.Semaphore(20)

    async def server(arrival: Arrival) -> None:
        async with limiter:
            await (hang() if arrival.index % 100 == 99 else answer(0.3))

    return server


def drifts() -> Server:
    async def server(arrival: Arrival) -> None:
        await anyio.sleep(0.05 + 0.08 * arrival.intended_s)

    return server


def streams(first_s: float, gap_s: float, pause_s: float = 0.0) -> Callable[[], Server]:
    """Twenty tokens, with a pause in the middle."""

    def make() -> Server:
        async def server(arrival: Arrival) -> Answered:
            await anyio.sleep(first_s)
            arrival.token()
            for token in range(19):
                await anyio.sleep(gap_s + (pause_s if token == 10 else 0.0))
                arrival.token()
            return Answered(output_tokens=20)

        return server

    return make


def invalid() -> Server:
    async def server(arrival: Arrival) -> Answered:
        await answer()
        return Answered(valid=arrival.index % 4 != 0)

    return server


def cancels_itself() -> Server:
    """Every tenth request raises a cancellation that nobody asked for."""
    stray = anyio.get_cancelled_exc_class

    async def server(arrival: Arrival) -> None:
        await answer()
        if arrival.index % 10 == 9:
            kind = stray()
            raise kind._create() if hasattr(kind, "_create") else kind()

    return server


BAD_SERVERS = (
    BadServer("hangs always", by_share(1.0, hang)),
    BadServer("hangs for a tenth", by_share(0.1, hang)),
    BadServer("hangs for a fiftieth", by_share(0.02, hang)),
    BadServer("hangs for a fiftieth, with a small pool", by_share(0.02, hang), max_in_flight=64),
    BadServer("hangs for a fiftieth, with no error limit", by_share(0.02, hang), Slo(p99_s=1.0, error_rate=None)),
    BadServer("hangs in the second half", while_(lambda at: at > 12, hang)),
    BadServer("hangs for one second", while_(lambda at: 10 < at < 11, hang)),
    BadServer("refuses always", by_share(1.0, refuse)),
    BadServer("refuses nine of ten", by_share(0.9, refuse)),
    BadServer("refuses nine of ten, with no error limit", by_share(0.9, refuse), Slo(p95_s=1.0, error_rate=None)),
    BadServer("refuses one of fifty", by_share(0.02, refuse)),
    BadServer("refuses in the last seconds", while_(lambda at: at > 20, refuse)),
    BadServer("fails late for one of ten", by_share(0.1, fail_late)),
    BadServer("fails late for one of twenty, p99 only", by_share(0.05, fail_late), Slo(p99_s=1.0, error_rate=None)),
    BadServer("cancels itself", cancels_itself),
    BadServer("sheds a third", queue(33, most=10)),
    BadServer("sheds one of twenty", queue(47.5, most=5)),
    BadServer("sheds one of twenty, with no error limit", queue(47.5, most=5), Slo(p99_s=1.0, error_rate=None)),
    BadServer("is a tenth too slow", queue(45)),
    BadServer("is a third too slow", queue(33)),
    BadServer("is a hundred times too slow", queue(0.5)),
    BadServer("is a third too slow, with a small pool", queue(33), max_in_flight=60),
    BadServer("has too few slots", slots(4, 0.2)),
    BadServer("has too few slots, and full pools", slots(4, 0.2), max_in_flight=51),
    BadServer("stalls two seconds of ten", freezes(10, 2.5)),
    BadServer("stalls three seconds of twenty", freezes(20, 4)),
    BadServer("answers slowly", by_share(1.0, lambda: answer(1.2))),
    BadServer("answers one of ten slowly", by_share(0.1, lambda: answer(3.0))),
    BadServer("leaks workers", leaks),
    BadServer("drifts away", drifts),
    BadServer("falls behind under a loose limit", queue(45), Slo(p95_s=10.0), serves_users=True),
    BadServer("has a late first token", streams(0.8, 0.01), Slo(ttft_p95_s=0.5)),
    BadServer("streams slowly", streams(0.1, 0.06), Slo(tpot_p95_s=0.05)),
    BadServer("stutters", streams(0.1, 0.01, 0.5), Slo(itl_p95_s=0.1)),
    BadServer("hangs for a tenth, tokens in time", by_share(0.1, hang), Slo(tpot_p95_s=0.05, itl_p95_s=0.1)),
    BadServer("gives invalid answers", invalid, Slo(p95_s=1.0, validity_rate=0.9)),
)
