"""Falling back: on what was said, in order, with all failures told and all usage counted."""

import anyio
import pytest

from sampling import (
    BackendError,
    Budget,
    BudgetExceeded,
    FatalError,
    Generation,
    Message,
    RejectionSamplingStrategy,
    Request,
    TransientError,
    Usage,
    report_usage,
)
from sampling.backends.layers import Fallback
from sampling.backends.simulated import SimulatedBackend
from sampling.errors import AuthenticationFailed, ModelNotFound
from sampling.testing import After, ScriptedBackend, cancel_at_every_step

ASK = Request((Message("user", "hello"),))


def test_the_next_one_is_asked_when_one_fails_for_good(run):
    """Backends after the one that answers are not called."""
    first = ScriptedBackend([AuthenticationFailed("bad key")])
    second = ScriptedBackend(["done"])
    third = ScriptedBackend([])

    assert "done" == run(Fallback(first, second, third).generate, ASK).text
    assert (1, 1, 0) == (len(first.requests), len(second.requests), len(third.requests))


def test_other_errors_come_through_at_once(run):
    """By default only a FatalError leads to the next backend."""
    second = ScriptedBackend([])

    with pytest.raises(TransientError, match="busy"):
        run(Fallback(ScriptedBackend([TransientError("busy")]), second).generate, ASK)
    assert 0 == len(second.requests)


@pytest.mark.parametrize("on", [BackendError, [BackendError], (LookupError, TransientError)])
def test_on_says_what_makes_it_go_on(run, on):
    """`on` is one error type, or several."""
    assert (
        "done"
        == run(Fallback(ScriptedBackend([TransientError("busy")]), ScriptedBackend(["done"]), on=on).generate, ASK).text
    )


def test_which_one_answered_is_on_the_generation(run):
    """By the model it names, else by the backend's own model, else by its name."""

    async def plain(request):
        return "done"

    def failing():
        return ScriptedBackend([FatalError("no")])

    named = Fallback(failing(), ScriptedBackend([Generation("done", model="gpt")]))
    owned = Fallback(failing(), SimulatedBackend(model="small"))
    anonymous = Fallback(failing(), plain)

    assert "gpt" == run(named.generate, ASK).model
    assert "small" == run(owned.generate, ASK).model
    assert "plain" in run(anonymous.generate, ASK).model


def test_if_all_fail_the_last_error_is_raised_from_a_group_of_all(run):
    """With its own type, and its own cause kept further up the chain."""
    errors = [AuthenticationFailed("one"), FatalError("two"), ModelNotFound("three")]
    errors[-1].__cause__ = OSError("root")

    with pytest.raises(ModelNotFound, match="three") as failure:
        run(Fallback(*[ScriptedBackend([error]) for error in errors]).generate, ASK)
    group = failure.value.__cause__
    assert isinstance(group, ExceptionGroup)
    assert errors == list(group.exceptions)
    assert "root" == str(group.__cause__)


def test_what_failed_ones_had_used_is_on_the_bill_and_each_is_a_request(run):
    """Row 79: usage adds up, and a budget of requests counts every backend that was asked."""

    async def expensive(request):
        report_usage(Usage(10, 5, 1.0))
        raise FatalError("broke off")

    async def cheap(request):
        return Generation("done", Usage(1, 2, 0.5))

    async def call(budget):
        return await RejectionSamplingStrategy().sample("hello", None, Fallback(expensive, cheap), budget=budget)

    result = run(call, Budget(requests=2))
    assert (Usage(11, 7, 1.5), 2) == (result.usage, result.best.requests)
    with pytest.raises(BudgetExceeded):
        run(call, Budget(requests=1))


def test_a_stream_goes_on_elsewhere_only_before_its_first_piece(run):
    """Text that was handed over can't be taken back, and is never spliced."""

    class Breaking:
        def __init__(self, *pieces):
            self.pieces = pieces

        async def generate(self, request):
            raise NotImplementedError

        async def stream(self, request, receive):
            await anyio.sleep(0.1)
            for piece in self.pieces:
                receive(piece)
            raise FatalError("broke off")

    async def stream(first):
        pieces = []
        try:
            await Fallback(first, SimulatedBackend(output_tokens=3)).stream(ASK, pieces.append)
        except FatalError:
            return pieces
        return len(pieces)

    assert 3 == run(stream, Breaking())
    assert ["half"] == run(stream, Breaking("half"))


def test_a_cancellation_at_any_step_asks_nobody_else():
    """Row 38: it comes through, and no backend is left working."""
    made = []

    async def scenario(world):
        backends = [ScriptedBackend([After(0.1, FatalError("no"))]), ScriptedBackend([After(0.1, "done")])]
        made.append(backends)
        await Fallback(*backends, on=Exception).generate(ASK)

    def check(world, outcome):
        first, second = made[-1]
        assert (0, 0) == (first.in_flight, second.in_flight)
        assert not (first.cancelled and second.requests)

    cancel_at_every_step(scenario, check=check)


def test_all_backends_are_opened_and_closed(run):
    """Backends close in the reverse order of opening, and one that failed to open is skipped."""
    events = []

    class Openable(ScriptedBackend):
        async def __aenter__(self):
            events.append(f"open {self.name}")
            return self

        async def __aexit__(self, *_):
            events.append(f"close {self.name}")

    def openable(name):
        backend = Openable([])
        backend.name = name
        return backend

    async def use():
        async with Fallback(openable("a"), SimulatedBackend(), openable("b")):
            events.append("use")

    run(use)
    assert ["open a", "open b", "use", "close b", "close a"] == events


@pytest.mark.parametrize(
    ("others", "on", "message"),
    [
        ([], FatalError, "others must not be empty"),
        ([SimulatedBackend], FatalError, "got the class SimulatedBackend"),
        ([SimulatedBackend()], BaseException, "on must be one or more types of Exception"),
        ([SimulatedBackend()], [3], r"on must be one or more types of Exception.*got 3"),
        ([SimulatedBackend()], 3, "on must be an exception type, or several"),
    ],
)
def test_bad_settings_are_refused_by_name(others, on, message):
    """The error names the argument, shows the value and says what is allowed."""
    with pytest.raises((TypeError, ValueError), match=message):
        Fallback(SimulatedBackend(), *others, on=on)


def test_the_repr_shows_the_line():
    """The repr has the backends in order, and the errors that lead to the next one if they are not the default."""

    async def one(request): ...

    async def two(request): ...

    assert "Fallback(" in repr(Fallback(one, two))
    assert repr(Fallback(one, two, on=[TransientError])).endswith("on=['TransientError'])")
