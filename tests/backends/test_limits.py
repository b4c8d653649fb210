"""The logic of limits: slots, rates, and a limit that finds its own level."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampling.backends._limits import AdaptiveLimit, SlotPool, TokenBucket
from sampling.testing import cancel_at_every_step


async def hold(slots, seconds):
    async with slots.hold():
        await anyio.sleep(seconds)


def test_places_are_given_out_first_come_first_served(run):
    """Three want one place: they get it in the order in which they asked."""
    slots = SlotPool(1)
    order = []

    async def one(name):
        async with slots.hold():
            order.append(name)
            await anyio.sleep(1)

    async def three():
        async with anyio.create_task_group() as group:
            for name in "abc":
                group.start_soon(one, name)
                await anyio.sleep(0.1)
            assert (1, 2) == (slots.in_use, slots.waiting)

    run(three)
    assert ["a", "b", "c"] == order
    assert (0, 0) == (slots.in_use, slots.waiting)


def test_the_number_of_places_may_change_while_they_are_held(run):
    """A higher limit wakes waiting tasks at once, and a lower one takes no permit away."""
    slots = SlotPool(1)

    async def change():
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(hold, slots, 10)
            await anyio.sleep(1)
            slots.total = 3
            await anyio.sleep(1)
            assert (3, 0) == (slots.in_use, slots.waiting)
            slots.total = 0
            assert 3 == slots.in_use
        return anyio.current_time()

    run(change)
    assert (0, 0, 0) == (slots.total, slots.in_use, slots.waiting)


def test_the_number_of_places_may_change_while_nobody_is_there(run):
    """In an event loop between two uses, or outside of any."""
    slots = SlotPool(1)

    async def use_then_close():
        await hold(slots, 1)
        slots.total = 0
        with anyio.move_on_after(1) as scope:
            await hold(slots, 1)
        return scope.cancelled_caught

    assert run(use_then_close)
    slots.total = 2
    run(hold, slots, 1)


def test_no_place_is_lost_to_a_cancellation_at_any_step():
    """Row 38: after a cancellation while waiting, while holding or in between, every place is free again."""
    made = []

    async def scenario(world):
        slots = SlotPool(2)
        made.append(slots)
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(hold, slots, world.latency())

    def check(world, outcome):
        assert (0, 0) == (made[-1].in_use, made[-1].waiting)

    cancel_at_every_step(scenario, check=check)


@pytest.mark.parametrize("loops", [("asyncio", "asyncio"), ("trio", "trio"), ("asyncio", "trio")])
def test_slots_serve_several_event_loops_at_once(loops):
    """Eight threads with an event loop each share two slots, never hold more, and none is lost."""
    slots = SlotPool(2)
    held, most = 0, 0
    lock = threading.Lock()

    async def use(count):
        nonlocal held, most
        for _ in range(count):
            async with slots.hold():
                with lock:
                    held += 1
                    most = max(most, held)
                await anyio.sleep(0.001)
                with lock:
                    held -= 1

    with ThreadPoolExecutor(8) as threads:
        done = [threads.submit(anyio.run, use, 20, backend=loops[number % 2]) for number in range(8)]
        for one in done:
            one.result(timeout=60)
    assert (2, 0, 0) == (most, slots.in_use, slots.waiting)


def test_a_slot_that_is_free_wakes_a_waiter_in_another_loop():
    """A waiter in another thread gets the slot that this loop releases, and one that gave up is skipped."""
    slots = SlotPool(1)
    waiting, gave_up, got_it = threading.Event(), threading.Event(), threading.Event()

    async def give_up():
        with anyio.move_on_after(0.01):
            await slots.acquire("impatient")
        gave_up.set()

    async def wait():
        async with anyio.create_task_group() as group:
            group.start_soon(hold, slots, 0)
            while not slots.waiting:  # noqa: ASYNC110
                await anyio.sleep(0.001)
            waiting.set()
        got_it.set()

    async def use():
        async with slots.hold():
            await anyio.to_thread.run_sync(anyio.run, give_up)
            thread = threading.Thread(target=anyio.run, args=(wait,), kwargs={"backend": "trio"})
            thread.start()
            await anyio.to_thread.run_sync(waiting.wait, 60)
            assert not got_it.is_set()
        await anyio.to_thread.run_sync(thread.join, 60)

    anyio.run(use)
    assert got_it.is_set()
    assert (0, 0) == (slots.in_use, slots.waiting)


def test_a_bucket_lets_a_burst_through_and_then_keeps_the_rate():
    """After a burst of two, one passes every half second, and a pause saves up one burst at most."""
    bucket = TokenBucket(2, burst=2)
    taken = []
    now = 100.0
    for _ in range(5):
        now = max(now, bucket.ready_at(1))
        bucket.take(1, now)
        taken.append(now - 100)

    assert [0, 0, 0.5, 1.0, 1.5] == taken
    assert bucket.ready_at(2) == 102.5
    assert bucket.ready_at(1) == 102.0


def test_more_than_a_burst_is_a_debt_for_those_who_come_later():
    """A large request passes at once, the next waits for it, and what is returned shortens the wait."""
    bucket = TokenBucket(100, burst=100)
    bucket.take(1_000, 0.0)
    assert 10.0 - 0.99 == bucket.ready_at(1)
    bucket.take(-500, 0.0)
    assert 5.0 - 0.99 == bucket.ready_at(1)


@given(
    st.floats(0.1, 1_000),
    st.integers(1, 50),
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 50)), min_size=1, max_size=60),
)
@settings(max_examples=200, deadline=None)
def test_no_sequence_of_takes_passes_the_rate(per_s, burst, takes):
    """In any interval no more is taken than its length allows, a burst and one last take that is larger than it."""
    bucket = TokenBucket(per_s, burst=burst)
    now, taken = 0.0, []
    for pause, amount in takes:
        now = max(now + pause, bucket.ready_at(amount))
        bucket.take(amount, now)
        taken.append((now, amount))
    for start in range(len(taken)):
        for end in range(start, len(taken)):
            total = sum(amount for _, amount in taken[start : end + 1])
            allowed = per_s * (taken[end][0] - taken[start][0]) + burst + max(amount for _, amount in taken)
            assert total <= allowed + 1e-6 * max(1, total)


class Server:
    """A simulated service with a capacity and a service time, whose waits follow Little's law."""

    def __init__(self, limit, capacity, service_s=1.0):
        self.limit, self.capacity, self.service_s, self.now = limit, capacity, service_s, 0.0

    def round_trip(self, *, streamed=True, tokens=10, used=1.0):
        """Send as many requests as the limit allows, all with the same queue."""
        count = max(1, int(self.limit.limit * used))
        wait_s = self.service_s * max(0.0, count / self.capacity - 1)
        sent_at, self.now = self.now, self.now + self.service_s + wait_s
        for _ in range(count):
            self.limit.sent()
        for _ in range(count):
            first_at = sent_at + wait_s + 0.1 if streamed else None
            self.limit.answered(sent_at=sent_at, now=self.now, first_at=first_at, tokens=tokens)

    def refuse(self, in_flight):
        for _ in range(in_flight + 1):
            self.limit.sent()
        self.limit.refused(now=self.now)
        for _ in range(in_flight):
            self.limit.abandoned()


@pytest.mark.parametrize("streamed", [True, False])
def test_it_grows_to_the_capacity_and_stays_near_it(streamed):
    """Not below nine tenths of it for long, and never with a queue of more than a half."""
    limit = AdaptiveLimit(initial=2)
    server = Server(limit, capacity=40)
    for _ in range(40):
        server.round_trip(streamed=streamed)
    levels = []
    for _ in range(100):
        server.round_trip(streamed=streamed)
        levels.append(limit.limit)

    assert sum(min(level, 40) for level in levels) / len(levels) > 0.9 * 40
    assert max(levels) < 1.5 * 40


def test_it_does_not_grow_when_it_is_not_reached():
    """A limit that was never reached shows nothing about the server."""
    limit = AdaptiveLimit(initial=10)
    server = Server(limit, capacity=100)
    for _ in range(50):
        server.round_trip(used=0.5)

    assert 10 == limit.limit


def test_a_refusal_cuts_it_below_what_is_in_flight_and_shows_the_ceiling():
    """It falls at once, grows back to where it was accepted, stays for a while, and then tries again."""
    limit = AdaptiveLimit(initial=20)
    server = Server(limit, capacity=1_000)
    server.refuse(in_flight=10)
    assert 9 == limit.limit
    levels = []
    for _ in range(8):
        server.round_trip()
        levels.append(limit.limit)

    assert [10] * 4 == levels[1:5]
    assert 10 < levels[-1]


def test_a_burst_of_refusals_is_one_refusal():
    """Ten that were sent together and refused together do not cut it ten times over."""
    limit = AdaptiveLimit(initial=30)
    for _ in range(30):
        limit.sent()
    for _ in range(10):
        limit.refused(now=1.0)

    assert 18 == limit.limit


def test_a_lone_request_that_is_refused_pauses_everyone():
    """A lower limit can't help then, so what the server asked for is kept, within reason."""
    limit = AdaptiveLimit(initial=1)
    limit.sent()
    limit.refused(now=10.0, retry_after_s=5.0)
    assert 15.0 == limit.paused_until
    limit.sent()
    limit.refused(now=20.0, retry_after_s=1e9)
    assert 140.0 == limit.paused_until


def test_a_server_that_refuses_everything_and_does_not_say_for_how_long_is_asked_ever_more_rarely():
    """Probes follow after 1, 2, 4, 8 and 16 s, and start at 1 s again after an answer."""
    limit = AdaptiveLimit(initial=1)
    pauses = []
    for nothing_said in (None, math.nan, -1.0, None, None, None):
        limit.sent()
        limit.refused(now=1_000.0 * len(pauses), retry_after_s=nothing_said)
        pauses.append(limit.paused_until - 1_000.0 * len(pauses))
    limit.sent()
    limit.answered(sent_at=9_000.0, now=9_001.0)
    limit.sent()
    limit.refused(now=10_000.0)

    assert [1, 2, 4, 8, 16, 16] == pauses
    assert 10_001.0 == limit.paused_until


def test_a_slower_model_is_not_taken_for_a_queue_for_ever():
    """When every answer takes five times as long, it falls, learns what is normal now, and comes back."""
    limit = AdaptiveLimit()
    server = Server(limit, capacity=30)
    for _ in range(40):
        server.round_trip(streamed=False)
    server.service_s = 5.0
    for _ in range(60):
        server.round_trip(streamed=False)

    assert limit.limit > 0.9 * 30


def test_a_slightly_slower_model_does_not_keep_it_down():
    """A service that became slower lowers the limit until the baseline is measured again."""
    limit = AdaptiveLimit()
    server = Server(limit, capacity=20)
    for _ in range(40):
        server.round_trip(streamed=False)
    server.service_s, server.capacity = 1.15, 60
    for _ in range(80):
        server.round_trip(streamed=False)

    assert limit.limit > 0.9 * 60


def test_a_standing_queue_does_not_become_the_new_normal():
    """A baseline that is measured anew is measured with the queue drained, so the limit does not creep up."""
    limit = AdaptiveLimit()
    server = Server(limit, capacity=20)
    for _ in range(2_000):
        server.round_trip()

    assert limit.limit < 1.5 * 20


@given(st.lists(st.sampled_from(["answer", "slow", "refuse", "abandon", "send", "send", "send"]), max_size=400))
@settings(max_examples=200, deadline=None)
def test_whatever_happens_it_stays_within_its_bounds(events):
    """Any mix of answers, refusals and losses keeps it between least and most, and its count of flights right."""
    limit = AdaptiveLimit(initial=4, least=2, most=50)
    now, in_flight = 0.0, []
    for event in events:
        now += 0.5
        if event == "send" or not in_flight:
            limit.sent()
            in_flight.append(now)
        elif event == "refuse":
            in_flight.pop()
            limit.refused(now=now, retry_after_s=0.1)
        elif event == "abandon":
            in_flight.pop()
            limit.abandoned()
        else:
            limit.answered(sent_at=in_flight.pop(0), now=now + (50 if event == "slow" else 0), tokens=3)
        assert 2 <= limit.limit <= 50
    assert f"with {len(in_flight)} in flight" in repr(limit)


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"least": 0}, "least must be >= 1"),
        ({"least": 5, "most": 4}, "most must be >= 5"),
        ({"initial": 0}, "initial must be >= 1"),
        ({"tolerated_wait": 0}, "tolerated_wait must be > 0"),
    ],
)
def test_bad_settings_are_refused_by_name(settings_, message):
    """The error names the argument, shows the value and says what is allowed."""
    with pytest.raises((TypeError, ValueError), match=message):
        AdaptiveLimit(**settings_)
    with pytest.raises(ValueError, match="per_s must be > 0"):
        TokenBucket(0)
    with pytest.raises(ValueError, match="total must be >= 0"):
        SlotPool(-1)


def test_a_slot_that_was_lent_comes_back_before_those_who_never_had_one(run):
    """It came first, and others may wait for what it holds."""
    order = []

    async def scenario():
        slots = SlotPool(1)

        async def newcomer(name):
            async with slots.hold():
                order.append(name)
                await anyio.sleep(1.0)

        async with anyio.create_task_group() as group, slots.hold() as slot:
            for name in ("second", "third"):
                group.start_soon(newcomer, name)
                await anyio.sleep(0.1)
            slot.lend()
            await anyio.sleep(0.1)
            slot.stop_lending()
            await slot.take_back()
            order.append("first")
        return slots.in_use, slots.waiting

    assert (0, 0) == run(scenario)
    assert ["second", "first", "third"] == order


def test_a_slot_stays_lent_until_the_last_task_inside_goes_on(run):
    """Taking it back for the first would hold up the others."""

    async def scenario():
        slots = SlotPool(1)
        async with slots.hold() as slot:
            slot.lend()
            slot.lend()
            slot.stop_lending()
            await slot.take_back()
            still_lent = slots.in_use
            slot.stop_lending()
            await slot.take_back()
            return still_lent, slots.in_use

    assert (0, 1) == run(scenario)


def test_a_slot_is_not_taken_back_after_its_end(run):
    """A thread that was abandoned may wait for others for longer than the request runs."""

    async def scenario():
        slots = SlotPool(1)
        async with slots.hold() as slot:
            slot.lend()
        slot.stop_lending()
        await slot.take_back()
        return slots.in_use

    assert 0 == run(scenario)
