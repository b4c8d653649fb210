"""Holding back: so many at once, so many a second, shared by all, and a limit that follows the server."""

import gc
import itertools

import anyio
import anyio.lowlevel
import pytest

from sampling import (
    Generation,
    Message,
    Options,
    RateLimited,
    RejectionSamplingStrategy,
    Request,
    Requirement,
    Timeout,
    Usage,
)
from sampling.backends.layers import Limited, Retrying
from sampling.backends.simulated import SimulatedBackend, lognormal
from sampling.testing import After, ScriptedBackend, cancel_at_every_step, run_virtual

ASK = Request((Message("user", "hello"),))


async def send_times(layer, count, request=ASK):
    """Send `count` requests at once and return when each reached the backend."""
    start = anyio.current_time()
    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(layer.generate, request)
    return [at - start for at in layer.inner[0].sent_at]


class Clocked(ScriptedBackend):
    """A scripted backend that notes when it was asked."""

    def __init__(self, script):
        super().__init__(script)
        self.sent_at = []

    async def generate(self, request):
        self.sent_at.append(anyio.current_time())
        return await super().generate(request)


def test_no_more_are_in_flight_than_allowed(run):
    """Invariant 7, shared by all calls through one layer: two calls of eight, three at once."""
    backend = ScriptedBackend(lambda request: After(1.0, "no"))
    limited = Limited(backend, max_in_flight=3)

    async def calls():
        strategy = RejectionSamplingStrategy(concurrency_budget=8)
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(strategy.sample, "hello", None, limited, [lambda text: text == "yes"])

    run(calls)
    assert (3, 16) == (backend.max_in_flight, len(backend.requests))
    assert (0, 0, 3) == (limited.statistics.in_flight, limited.statistics.waiting, limited.statistics.limit)


def test_requests_are_sent_so_far_apart(run):
    """Four a second, without a burst: one every quarter, exactly."""
    limited = Limited(Clocked(lambda request: "done"), requests_per_s=4)

    assert [0.0, 0.25, 0.5, 0.75, 1.0] == run(send_times, limited, 5)


def test_tokens_are_paced_by_what_answers_really_take(run):
    """The first request is admitted on an estimate, and later ones wait for what it really used."""
    backend = Clocked(lambda request: Generation("done", Usage(100, 200)))
    limited = Limited(backend, tokens_per_s=100)

    async def one_after_the_other():
        for _ in range(3):
            await limited.generate(Request((Message("user", "x" * 400),), Options(max_tokens=100)))
        return [at - backend.sent_at[0] for at in backend.sent_at]

    # Each is guessed at 200 tokens and takes 300: three seconds of the rate, less the second that may be saved up.
    assert [0.0, 3.0, 6.0] == run(one_after_the_other)


def test_a_cancellation_at_any_step_returns_what_it_had(run):
    """Row 38: waiting for a place, for its turn or in flight: the balance is 0, and the next one goes through."""
    made = []

    async def scenario(world):
        backend = ScriptedBackend(lambda request: After(world.latency(), "no"))
        limited = Limited(backend, max_in_flight=2, requests_per_s=10, tokens_per_s=1_000, adaptive=True)
        made.append((backend, limited))
        await RejectionSamplingStrategy(loop_budget=2, concurrency_budget=4).sample(
            "hello", None, limited, [lambda text: text == "yes"]
        )

    def check(world, outcome):
        backend, limited = made[-1]
        assert (0, 0, 0) == (backend.in_flight, limited.statistics.in_flight, limited.statistics.waiting)
        backend._reply_to = lambda request: "next"
        assert "next" == run_virtual(limited.generate, ASK, loop=world.loop).text

    cancel_at_every_step(scenario, check=check)


def test_a_cancelled_wait_takes_nothing_from_the_rate(run):
    """Row 38: a request that is given up while it waits for its turn leaves that turn to the next."""
    backend = Clocked(lambda request: "done")
    limited = Limited(backend, requests_per_s=1)

    async def impatient():
        start = anyio.current_time()
        await limited.generate(ASK)
        for _ in range(5):
            with anyio.move_on_after(0.1):
                await limited.generate(ASK)
        await limited.generate(ASK)
        return [at - start for at in backend.sent_at]

    assert [0.0, 1.0] == run(impatient)


def test_the_same_key_shares_the_limits(run):
    """Two layers with the same key share one limit, and a different limit under that key is an error."""
    backend = ScriptedBackend(lambda request: After(1.0, "done"))

    async def both():
        first = Limited(backend, max_in_flight=2, key="account")
        second = Limited(backend, max_in_flight=2, key="account")
        async with anyio.create_task_group() as group:
            for limited in (first, second) * 3:
                group.start_soon(limited.generate, ASK)
        with pytest.raises(ValueError, match=r"key 'account' is in use with other limits: \{'max_in_flight': 2\}"):
            Limited(backend, max_in_flight=3, key="account")

    run(both)
    assert 2 == backend.max_in_flight
    gc.collect()
    Limited(backend, max_in_flight=3, key="account")  # nobody uses the other limits any more


def test_it_works_on_one_event_loop_after_the_other():
    """Each event loop has its own clock, so the rate starts again."""
    limited = Limited(Clocked(lambda request: "done"), max_in_flight=1, requests_per_s=1, adaptive=True)
    for loop in ("asyncio", "trio", "asyncio"):
        limited.inner[0].sent_at.clear()
        assert [0.0, 1.0] == run_virtual(send_times, limited, 2, loop=loop)


def test_a_stream_comes_through(run):
    """Piece by piece, with and without an adaptive limit."""

    async def stream(adaptive):
        pieces = []
        limited = Limited(SimulatedBackend(output_tokens=5), max_in_flight=4, adaptive=adaptive)
        generation = await limited.stream(ASK, pieces.append)
        return len(pieces), "".join(pieces) == generation.text

    assert (5, True) == run(stream, True) == run(stream, False)


def test_a_backend_that_does_not_stream_gives_its_text_in_one_piece(run):
    """Every layer can stream, whatever backend it wraps."""

    async def stream():
        pieces = []
        await Limited(ScriptedBackend(["all at once"]), adaptive=True).stream(ASK, pieces.append)
        return pieces

    assert ["all at once"] == run(stream)


def test_what_is_cut_short_in_one_piece_is_paid_for_in_full(run):
    """A backend that does not stream has done all the work by the time a requirement sees that it was for nothing."""
    limited = Limited(ScriptedBackend([Generation("no", Usage(1, 50))]), max_in_flight=1)
    requirement = Requirement("says yes", lambda text: text == "yes", partial=lambda text: text == "yes")

    async def call():
        return await RejectionSamplingStrategy().sample("hello", None, limited, [requirement])

    assert Usage(1, 50) == run(call).usage


async def load(limited, backend, stages, *, stage_s, clients):
    """
    Ask all the time, with more clients than the server has slots, while its capacity changes.

    Return the share of what the server could have done that it did, and the share of requests that it refused.
    """
    numbers = itertools.count()
    loop = anyio.lowlevel.current_token().native_token
    if hasattr(loop, "set_debug"):
        loop.set_debug(False)  # asyncio's debug mode takes ten times as long for the same steps

    async def client():
        while True:
            try:
                await limited.generate(Request((Message("user", f"question {next(numbers)}"),)))
            except RateLimited:
                await anyio.sleep(1.0)

    shares = []
    async with anyio.create_task_group() as group:
        for _ in range(clients):
            group.start_soon(client)
        for slots in stages:
            backend.slots = slots
            busy_s = backend.statistics.busy_slot_s
            await anyio.sleep(stage_s)
            shares.append((backend.statistics.busy_slot_s - busy_s) / (slots * stage_s) if slots else 0.0)
        statistics = backend.statistics
        group.cancel_scope.cancel()
    possible_s = sum(slots * stage_s for slots in stages)
    refused = statistics.rejected / (statistics.served + statistics.rejected)
    return statistics.busy_slot_s / possible_s, refused, shares


def server(**settings):
    """A server whose answers take about 1.2 seconds, with lengths as real ones have."""
    return SimulatedBackend(
        seed=1, time_to_first_token_s=0.2, time_per_token_s=0.2, output_tokens=lognormal(6, 0.5), **settings
    )


class Whole:
    """A server that does not stream, so that only whole answers show how busy it is."""

    def __init__(self, backend):
        self.backend = backend

    async def generate(self, request):
        return await self.backend.generate(request)


@pytest.mark.parametrize(
    ("max_queued", "streamed"),
    [(None, True), (16, False), (4, True)],
    ids=["any queue, streamed", "long queue, whole", "short queue, streamed"],
)
def test_an_adaptive_limit_follows_a_capacity_that_nobody_tells_it(run, max_queued, streamed):
    """The hidden capacity changes twice: nine tenths of what is possible are done, and at most 2 % are refused."""
    backend = server(slots=12, max_queued=max_queued)
    limited = Limited(backend if streamed else Whole(backend), adaptive=True)

    goodput, refused, _ = run(load, limited, backend, (12, 4, 20), stage_s=200.0, clients=40)

    assert goodput >= 0.9
    assert refused <= 0.02


def test_without_any_queue_refusals_alone_show_the_way(run):
    """A server that refuses whatever it has no slot for: there is no wait to see, and still few are refused."""
    backend = server(slots=16, max_queued=0)

    limited = Limited(Whole(backend), adaptive=True)

    goodput, refused, _ = run(load, limited, backend, (16, 6, 24), stage_s=200.0, clients=40)

    assert goodput >= 0.9
    assert refused <= 0.02


@pytest.mark.parametrize("max_queued", [None, 0], ids=["any queue", "no queue"])
def test_an_adaptive_limit_recovers_after_a_collapse(run, max_queued):
    """After a server was down or had one slot for a minute, the load returns, and few requests were refused."""
    for collapse in (0, 1):
        backend = server(slots=12, max_queued=max_queued)
        limited = Limited(backend, adaptive=True)

        _, refused, shares = run(load, limited, backend, (12, collapse, 12, 12), stage_s=100.0, clients=30)

        assert shares[-1] >= 0.9
        assert refused <= 0.02


def test_an_adaptive_limit_is_the_same_to_the_byte_for_the_same_seed():
    """In virtual time nothing about it is left to chance."""

    async def measure():
        backend = server(slots=8, max_queued=4)
        return repr(await load(Limited(backend, adaptive=True), backend, (8, 4), stage_s=50.0, clients=20))

    for loop in ("asyncio", "trio"):
        assert run_virtual(measure, loop=loop, seed=1) == run_virtual(measure, loop=loop, seed=1)


def test_an_adaptive_limit_never_passes_the_most_that_was_given(run):
    """`max_in_flight` is its ceiling."""
    backend = server(slots=100)

    run(load, Limited(backend, adaptive=True, max_in_flight=10), backend, (100,), stage_s=60.0, clients=50)

    assert backend.statistics.busy_slot_s <= 10 * 60.0


def test_requests_that_time_out_make_it_send_fewer(run):
    """A timeout is the longest wait there is."""
    limited = Limited(ScriptedBackend(lambda request: After(1.0, Timeout("too slow"))), adaptive=True)

    async def eight():
        before = limited.statistics.limit

        async def one():
            with pytest.raises(Timeout):
                await limited.generate(ASK)

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(one)
        return before, limited.statistics.limit

    assert (8, 1) == run(eight)


def test_a_rate_limited_server_is_asked_again_when_it_said(run):
    """Row 1: with Retrying around an adaptive Limited, nearly all requests succeed at the server's own rate."""
    backend = SimulatedBackend(rate_limit=5, slots=100, output_tokens=1, time_to_first_token_s=0.01)
    layered = Retrying(Limited(backend, adaptive=True), attempts=20, seed=1)

    async def hundred():
        start = anyio.current_time()
        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(layered.generate, Request((Message("user", str(number)),)))
        return anyio.current_time() - start

    assert run(hundred) < 1.25 * 100 / 5
    assert 100 == backend.statistics.served


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "nothing is limited: give max_in_flight"),
        ({"max_in_flight": 0}, "max_in_flight must be >= 1, got 0"),
        ({"requests_per_s": -1}, "requests_per_s must be > 0, got -1"),
        ({"tokens_per_s": 0}, "tokens_per_s must be > 0, got 0"),
        ({"adaptive": 1}, "adaptive must be True or False, got 1"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, message):
    """The error names the argument, shows the value and says what is allowed."""
    with pytest.raises((TypeError, ValueError), match=message):
        Limited(SimulatedBackend(), **settings)


def test_the_repr_says_what_is_limited():
    """The repr shows only the limits that are set."""
    assert "Limited(load, max_in_flight=2, adaptive=True, key='k')" == repr(
        Limited(load, max_in_flight=2, adaptive=True, key="k")
    )
