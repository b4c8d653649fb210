"""Trying again: only what may pass, as long as was asked for, never more often than allowed, by one owner."""

import itertools
import random

import anyio
import anyio.lowlevel
import pytest

from sampling import (
    Budget,
    BudgetExceeded,
    Generation,
    Message,
    RateLimited,
    RejectionSamplingStrategy,
    Request,
    Timeout,
    TransientError,
    Usage,
    report_usage,
)
from sampling.backends.layers import Fallback, Limited, Retrying
from sampling.backends.simulated import SimulatedBackend
from sampling.errors import AuthenticationFailed
from sampling.testing import After, ScriptedBackend, cancel_at_every_step

ASK = Request((Message("user", "hello"),))


async def timed(backend, request=ASK):
    """Return the answer, or what was raised, and how long it took."""
    start = anyio.current_time()
    try:
        outcome = await backend.generate(request)
    except Exception as error:
        outcome = error
    return outcome, anyio.current_time() - start


def test_a_wait_that_was_asked_for_is_kept_to_the_letter(run):
    """Row 1: `Retry-After: 2` is two seconds, then the request is sent again."""
    backend = ScriptedBackend([RateLimited(retry_after_s=2), RateLimited(retry_after_s=0.25), "done"])

    assert (Generation("done"), 2.25) == run(timed, Retrying(backend))


@pytest.mark.parametrize(
    ("asked_s", "waited_s"), [(1e9, 120.0), (float("inf"), 120.0), (119.5, 119.5), (0, 0.0), (0.0, 0.0)]
)
def test_a_wait_is_clamped(run, asked_s, waited_s):
    """Row 2: never longer than two minutes, unless you say so."""
    backend = ScriptedBackend([RateLimited(retry_after_s=asked_s), "done"])

    assert waited_s == run(timed, Retrying(backend))[1]


@pytest.mark.parametrize("asked_s", [float("nan"), -1, -1e9, None])
def test_a_wait_that_makes_no_sense_is_ignored(run, asked_s):
    """Row 2: an implausible wait is replaced by the usual backoff."""
    backend = ScriptedBackend([RateLimited(retry_after_s=asked_s), "done"])

    waited_s = run(timed, Retrying(backend, backoff_s=0.5, seed=1))[1]
    assert pytest.approx(random.Random("1 0 0 1").uniform(0, 0.5)) == waited_s


def test_backoff_has_full_jitter_and_doubles(run):
    """Each wait is drawn between nothing and twice the bound before, repeatably for a seed."""
    sent_at = []

    async def failing(request):
        sent_at.append(anyio.current_time())
        raise TransientError("no")

    outcome, _ = run(timed, Retrying(failing, attempts=6, backoff_s=1.0, seed=3))
    first = [later - earlier for earlier, later in itertools.pairwise(sent_at)]
    expected = [random.Random(f"3 0 0 {tries}").uniform(0, 2 ** (tries - 1)) for tries in range(1, 6)]
    assert isinstance(outcome, TransientError)
    assert [pytest.approx(wait) for wait in expected] == first


def test_two_subsamples_do_not_come_back_in_step(run):
    """Row 3: requests that fail together draw different waits."""
    sent_at = {}

    async def failing(request):
        sent_at.setdefault(request.subsample, []).append(anyio.current_time())
        raise TransientError("no")

    async def call():
        strategy = RejectionSamplingStrategy(concurrency_budget=8)
        with pytest.raises(TransientError):
            await strategy.sample("hello", None, Retrying(failing, attempts=2, seed=1))

    run(call)
    assert 8 == len({times[1] for times in sent_at.values()})


def test_attempts_are_the_sum_of_all_tries_and_the_error_says_so(run):
    """The last failure is raised, with its own type and a note of how often it was tried."""
    backend = ScriptedBackend(lambda request: Timeout("too slow"))

    outcome, _ = run(timed, Retrying(backend, attempts=3))
    assert 3 == len(backend.requests)
    assert isinstance(outcome, Timeout)
    assert "tried 3 times" in outcome.__notes__


def test_a_storm_on_all_breadth_ends_in_one_typed_error_after_exactly_the_waits(run):
    """Row 3: eight subsamples, three attempts each, four tries an attempt: bounded, exact, and one RateLimited."""
    backend = ScriptedBackend(lambda request: RateLimited(retry_after_s=2))

    async def storm():
        strategy = RejectionSamplingStrategy(loop_budget=3, concurrency_budget=8)
        start = anyio.current_time()
        with pytest.raises(RateLimited) as failure:
            await strategy.sample("hello", None, Retrying(backend, attempts=4))
        assert isinstance(failure.value.__cause__, ExceptionGroup)
        return anyio.current_time() - start

    # Three waits of two seconds for each attempt, one attempt after the other.
    assert 3 * 3 * 2.0 == run(storm)
    assert 8 * 3 * 4 == len(backend.requests)


@pytest.mark.parametrize("error", [AuthenticationFailed("bad key"), LookupError("unknown"), OSError("unknown")])
def test_what_will_never_pass_is_not_tried_again(run, error):
    """Row 5: neither a fatal error nor one of an unknown type."""
    backend = ScriptedBackend([error])

    assert (error, 0.0) == run(timed, Retrying(backend))
    assert 1 == len(backend.requests)


def test_a_cancellation_at_any_step_comes_through_at_once():
    """Row 38: a cancellation during a try or a wait passes through, and no request follows."""
    backends = []

    async def scenario(world):
        backend = ScriptedBackend([After(0.1, TransientError("no")), After(0.1, RateLimited(retry_after_s=5)), "done"])
        backends.append(backend)
        return await Retrying(backend, seed=1).generate(ASK)

    def check(world, outcome):
        assert 0 == backends[-1].in_flight
        assert outcome.error is None or not isinstance(outcome.error, Exception)

    cancel_at_every_step(scenario, check=check)
    cancel_at_every_step(scenario, check=check, native=True)


def test_waits_count_against_the_deadline(run):
    """Row 1: a wait is time of the call, and a deadline ends it."""
    backend = ScriptedBackend(lambda request: RateLimited(retry_after_s=60))

    async def call():
        start = anyio.current_time()
        result = await RejectionSamplingStrategy().sample(
            "hello", None, Retrying(backend), budget=Budget(deadline_s=10)
        )
        return result.stop_reason, anyio.current_time() - start

    assert ("deadline", 10.0) == run(call)
    assert 1 == len(backend.requests)


def test_a_retry_costs_no_attempt(run):
    """A retried request does not count against the loop budget."""
    backend = ScriptedBackend([TransientError("no"), TransientError("no"), "done"])

    async def call():
        return await RejectionSamplingStrategy(loop_budget=1).sample("hello", None, Retrying(backend))

    result = run(call)
    assert (True, 1) == (result.success, len(result.attempts))


def test_what_failed_tries_had_used_is_on_the_bill(run):
    """A try that breaks off is paid for too, whether the next one succeeds or none does."""

    async def breaking(request):
        report_usage(Usage(10, 5))
        if len(sent) < 3:
            sent.append(request)
            raise TransientError("broke off")
        return Generation("done", Usage(10, 20))

    async def call(attempts):
        sent.clear()
        strategy = RejectionSamplingStrategy(loop_budget=2)
        return await strategy.sample("hello", None, Retrying(breaking, attempts=attempts))

    sent = []
    assert Usage(40, 35) == run(call, 4).usage
    result = run(call, 2)  # two tries, twice; the last one succeeds
    assert [Usage(20, 10), Usage(20, 25)] == [attempt.usage for attempt in result.attempts]


def test_every_try_is_a_request_that_the_slice_shows_and_the_budget_limits(run):
    """Rows 4 and 79: five tries are five requests, and a budget of three ends them after three."""
    backend = ScriptedBackend([*[TransientError("no")] * 4, "done"])

    async def call(backend, budget):
        return await RejectionSamplingStrategy().sample("hello", None, Retrying(backend, attempts=9), budget=budget)

    result = run(call, backend, Budget(requests=5))
    assert (True, 5) == (result.success, result.best.requests)

    failing = ScriptedBackend(lambda request: TransientError("no"))
    budget = Budget(requests=3)
    with pytest.raises(BudgetExceeded):
        run(call, failing, budget)
    assert (3, 3) == (len(failing.requests), budget.requests_made)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: inner,
        lambda inner: Limited(inner, max_in_flight=1),
        lambda inner: Fallback(SimulatedBackend(), Limited(inner, max_in_flight=1)),
    ],
)
def test_a_second_owner_of_retries_is_refused(wrap):
    """Row 79: at any depth, when it is put together and not when it has cost something."""
    with pytest.raises(ValueError, match=r"backend must not retry already, got Retrying.*keep one of the two"):
        Retrying(wrap(Retrying(SimulatedBackend())))


def test_retries_that_meet_in_hiding_do_not_multiply(run):
    """Row 79: only the outer layer retries, also where a plain function is between the two."""
    backend = ScriptedBackend(lambda request: TransientError("no"))
    innermost = Retrying(backend, attempts=5)

    async def hidden(request):
        return await innermost.generate(request)

    middle = Retrying(hidden, attempts=5)

    async def hidden_again(request):
        return await middle.generate(request)

    run(timed, Retrying(hidden_again, attempts=3))
    assert 3 == len(backend.requests)


def test_side_by_side_each_may_retry(run):
    """Two that do not stack are two owners of two things."""
    first = ScriptedBackend(lambda request: TransientError("no"))
    second = ScriptedBackend([TransientError("no"), "done"])
    both = Fallback(Retrying(first, attempts=2), Retrying(second, attempts=2), on=TransientError)

    assert "done" == run(timed, both)[0].text
    assert (2, 2) == (len(first.requests), len(second.requests))


def test_a_stream_is_tried_again_only_before_its_first_piece(run):
    """Row 10: text that was handed over can't be taken back, and is never spliced."""

    class Streaming:
        def __init__(self, pieces_before_failing):
            self.tries = 0
            self.pieces = pieces_before_failing

        async def generate(self, request):
            raise NotImplementedError

        async def stream(self, request, receive):
            self.tries += 1
            await anyio.lowlevel.checkpoint()
            if self.tries == 1:
                for piece in self.pieces:
                    receive(piece)
                raise TransientError("broke off")
            receive("whole")
            return Generation("whole")

    async def stream(backend):
        pieces = []
        try:
            await Retrying(backend).stream(ASK, pieces.append)
        except TransientError as error:
            return pieces, error.__notes__[-1]
        return pieces, None

    assert (["whole"], None) == run(stream, Streaming([]))
    assert (["half"], "tried once") == run(stream, Streaming(["half"]))


def test_a_request_that_waits_for_its_next_try_holds_no_place(run):
    """Row 1: with Retrying around Limited, another goes through while the first one waits."""
    backend = ScriptedBackend([RateLimited(retry_after_s=10), "second", "first"])
    layered = Retrying(Limited(backend, max_in_flight=1))
    order = []

    async def one(name):
        await layered.generate(ASK)
        order.append((name, anyio.current_time()))

    async def both():
        start = anyio.current_time()
        async with anyio.create_task_group() as group:
            group.start_soon(one, "first")
            await anyio.sleep(1)
            group.start_soon(one, "second")
        return [(name, at - start) for name, at in order]

    assert [("second", 1.0), ("first", 10.0)] == run(both)


def test_it_opens_and_closes_what_is_inside(run):
    """A layer is an async context manager around whatever its backend is."""
    events = []

    class Openable(ScriptedBackend):
        async def __aenter__(self):
            events.append("open")
            return self

        async def __aexit__(self, *_):
            events.append("close")

    async def use():
        async with Retrying(Limited(Openable(["done"]), max_in_flight=1)) as backend:
            events.append((await backend.generate(ASK)).text)
            with pytest.raises(RuntimeError, match="is open already"):
                async with backend:
                    pass
        async with Retrying(SimulatedBackend()):
            pass

    run(use)
    assert ["open", "done", "close"] == events


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attempts": 0}, "attempts must be >= 1, got 0"),
        ({"max_wait_s": -1}, "max_wait_s must be >= 0, got -1"),
        ({"backoff_s": "1"}, "backoff_s must be a number"),
        ({"seed": 1.5}, "seed must be an int"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, message):
    """The error names the argument, shows the value and says what is allowed."""
    with pytest.raises((TypeError, ValueError), match=message):
        Retrying(SimulatedBackend(), **settings)


def test_a_backend_that_is_none_is_refused():
    """A class that was not called, or something that can't answer."""
    with pytest.raises(TypeError, match=r"got the class SimulatedBackend\. Create an instance first"):
        Retrying(SimulatedBackend)
    with pytest.raises(TypeError, match="backend must be a Backend with `async def generate"):
        Retrying(3)


def test_the_repr_shows_the_stack():
    """The repr lists the layers from the outside in."""
    assert repr(Retrying(Limited(timed, max_in_flight=2), attempts=3)) == (
        "Retrying(Limited(timed, max_in_flight=2), attempts=3, max_wait_s=120.0)"
    )
