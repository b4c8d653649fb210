"""
`check_backend`: does a backend keep the promises of the `Backend` protocol?

For authors of backends, to call from a test of their own, on asyncio and on trio:

    async def test_my_backend_keeps_its_promises():
        await check_backend(lambda: MyBackend(base_url))

Each rule opens a backend, tries it, closes it, and then looks for what is left.
A broken rule is a `RuleBroken`, an AssertionError whose message says which rule, and how it was broken.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from typing import Any, Literal, TypeAlias, get_args

import anyio
import attrs

from sampling._arguments import check_number, shown
from sampling.errors import BackendError
from sampling.hooks import Hooks, IterationFinished
from sampling.messages import Generation, Message, Options, Request
from sampling.protocols import Backend, StreamingBackend
from sampling.strategies import RejectionSamplingStrategy
from sampling.testing.leftovers import Leftovers, left_behind
from sampling.usage import Usage

__all__ = ["BackendFactory", "Claim", "RuleBroken", "check_backend"]

Claim = Literal["usage", "max_tokens", "stop", "seed"]
"""What not every backend can do: only what one claims is checked."""

BackendFactory: TypeAlias = Callable[[], Backend | AbstractAsyncContextManager[Backend]]
"""Makes a backend, or an async context manager that opens one and closes it."""

_ALL_CLAIMS = frozenset(get_args(Claim))
_AT_ONCE = 5
_CANCELLATIONS = 10
_LATEST_CANCELLATION_S = 0.2
_SOCKETS_A_POOL_MAY_KEEP = 3


class RuleBroken(AssertionError):
    """A backend does not keep a promise; `rule` says which one."""

    def __init__(self, rule: str, how: str) -> None:
        super().__init__(f"the rule is that a backend {rule}; broken: {how}")
        self.rule = rule


async def check_backend(
    factory: BackendFactory,
    *,
    request: Request | None = None,
    long_request: Request | None = None,
    bad_request: Request | None = None,
    claims: Collection[Claim] = ("usage", "max_tokens", "stop"),
    grace_s: float = 1.0,
) -> tuple[str, ...]:
    """
    Check a backend against every rule of the protocol, and return the rules that it was checked against.

    Args:
        factory: Makes a backend for each rule. An async context manager is entered, gives the backend, and is left
            again: what is alive after that was left behind.

        request: Something that it answers soon, with a few tokens.

        long_request: Something that takes it seconds to answer. It is never answered to the end, but cancelled.

        bad_request: Something that it must refuse. Without it, an empty conversation is sent: that it may answer,
            but if it refuses, then as it refuses everything, with a `BackendError`.

        claims: What this backend can do and not every one can: report "usage", also of what was cancelled;
            obey "max_tokens"; obey "stop"; give the same answer to the same request with the same "seed".

        grace_s: How long it may take to stop when it is cancelled, and what is about to end to be gone.
    """
    case = _Case(
        request or _ask("Tell me about rain.", max_tokens=16),
        long_request or _ask("Tell me all about rain.", max_tokens=4_096),
        bad_request,
        _checked_claims(claims),
        check_number("grace_s", grace_s, above=0),
    )
    rules = [rule for rule in _RULES if rule.claim is None or rule.claim in case.claims]
    for rule in rules:
        await _check(rule, case, factory)
    return tuple(rule.promise for rule in rules)


def _ask(text: str, **options: Any) -> Request:
    return Request((Message("user", text),), Options(**options))


def _checked_claims(claims: Collection[Claim]) -> frozenset[Claim]:
    unknown = sorted(set(claims) - _ALL_CLAIMS)
    if unknown:
        raise ValueError(f"claims must be some of {', '.join(sorted(_ALL_CLAIMS))}, got {shown(unknown[0])}")
    return frozenset(claims)


@attrs.frozen
class _Case:
    """What the caller of `check_backend` gave."""

    request: Request
    long_request: Request
    bad_request: Request | None
    claims: frozenset[Claim]
    grace_s: float


@attrs.frozen
class _Rule:
    promise: str
    """What a backend does: the rest of a sentence that begins with "a backend"."""

    check: Callable[[Backend, _Case], Awaitable[None]]
    claim: Claim | None = None


class _Broken(Exception):
    """How a rule was broken; which one it was, `_check` knows."""


async def _check(rule: _Rule, case: _Case, factory: BackendFactory) -> None:
    before = Leftovers.now()
    made = factory()
    async with made if isinstance(made, AbstractAsyncContextManager) else nullcontext(made) as backend:
        if not isinstance(backend, Backend):
            raise RuleBroken("has a method `async def generate(request)`", f"{shown(backend)} has none")
        try:
            await rule.check(backend, case)
        except _Broken as broken:
            raise RuleBroken(rule.promise, str(broken)) from broken.__cause__
    # The backend is still referred to here, so that no destructor closes for it what it forgot to close.
    left = await left_behind(before, case.grace_s)
    if left:
        how = f"{left} still there {case.grace_s:g} s later, when it had been checked that it {rule.promise}"
        raise RuleBroken("leaves no task, thread or socket behind", how)


# How a rule asks, and what it looks at each time.


async def _generate(backend: Backend, request: Request) -> Generation:
    with _watching(request):
        return _checked(await backend.generate(request))


async def _stream(backend: StreamingBackend, request: Request, receive: Callable[[str], None]) -> Generation:
    with _watching(request):
        return _checked(await backend.stream(request, receive))


@contextmanager
def _watching(request: Request) -> Generator[None]:
    before = repr(request)
    try:
        yield
    except _Broken:
        raise
    except Exception as error:
        raise _Broken(f"it raised {error!r} for {shown(request.messages)}") from error
    if repr(request) != before:
        raise _Broken(f"it changed the request, which is not its own, to {shown(request)}")


def _checked(answer: Any) -> Generation:
    if not isinstance(answer, Generation):
        raise _Broken(f"it returned {shown(answer)} ({type(answer).__name__}), which is no Generation")
    reason: Any = answer.finish_reason
    if not isinstance(reason, str) or not reason:
        raise _Broken(f"it returned a Generation with the finish_reason {shown(reason)}, which is no word")
    return answer


async def _check_no_task_is_left(before: Leftovers, case: _Case, when: str) -> None:
    """See that no task outlives its request; threads and connections an open backend may keep."""
    left = await left_behind(before, case.grace_s, is_fine=lambda left: not left.tasks)
    if left.tasks:
        raise _Broken(f"{', '.join(left.tasks.values())} still there {case.grace_s:g} s after {when}")


def _with(request: Request, **options: Any) -> Request:
    return attrs.evolve(request, options=attrs.evolve(request.options, **options))


# The rules.


async def _answers(backend: Backend, case: _Case) -> None:
    await _generate(backend, case.request)
    before = Leftovers.now()
    answer = await _generate(backend, case.request)
    await _check_no_task_is_left(before, case, "its request was answered")
    if not answer.text:
        raise _Broken("its answer has no text")


async def _reports_usage(backend: Backend, case: _Case) -> None:
    usage = (await _generate(backend, case.request)).usage
    if not usage.input_tokens or not usage.output_tokens:
        raise _Broken(f"it reported {usage} for a question and an answer that both have tokens")


async def _reports_usage_of_what_is_cancelled(backend: Backend, case: _Case) -> None:
    if not isinstance(backend, StreamingBackend):
        return
    usages: list[Usage] = []
    hooks = Hooks()
    hooks.on(IterationFinished)(lambda event: usages.append(event.slice.usage))

    async def ask(_: Request) -> Generation:
        return await backend.stream(case.long_request, lambda _: scope.cancel())

    with anyio.CancelScope() as scope:
        await RejectionSamplingStrategy(hooks=hooks).sample("", None, ask)
    if not usages or not usages[0].output_tokens:
        raise _Broken(f"it was cancelled in the middle of an answer, and had reported {usages}")


async def _obeys_max_tokens(backend: Backend, case: _Case) -> None:
    for limit in (1, 4):
        answer = await _generate(backend, _with(case.request, max_tokens=limit))
        if answer.usage.output_tokens > limit:
            raise _Broken(f"with max_tokens={limit} it generated {answer.usage.output_tokens} tokens")
        if (words := len(answer.text.split())) > limit:
            raise _Broken(f"with max_tokens={limit} it answered with {words} words")


async def _obeys_stop(backend: Backend, case: _Case) -> None:
    """Stop at the letter that it uses most: without that letter a model that goes on can hardly speak."""
    plain = await _generate(backend, case.request)
    letter = Counter(plain.text.strip()).most_common(1)[0][0]
    stopped = await _generate(backend, _with(case.request, stop=(letter,)))
    if letter in stopped.text:
        raise _Broken(f"with stop=({letter!r},) there is a {letter!r} in its answer")


async def _obeys_seed(backend: Backend, case: _Case) -> None:
    request = _with(case.request, seed=7)
    first, second = await _generate(backend, request), await _generate(backend, request)
    if first.text != second.text:
        raise _Broken("it gave two answers to one request with seed=7")


async def _streams(backend: Backend, case: _Case) -> None:
    if not isinstance(backend, StreamingBackend):
        return
    pieces: list[Any] = []
    answer = await _stream(backend, case.request, pieces.append)
    _check_pieces(pieces, answer)


def _check_pieces(pieces: list[Any], answer: Generation) -> None:
    odd = [piece for piece in pieces if not isinstance(piece, str)]
    if odd:
        raise _Broken(f"a piece of its stream is {shown(odd[0])}, which is no str")
    text = "".join(pieces)
    if text != answer.text:
        raise _Broken(f"the pieces of its stream are {shown(text)}, and its text is {shown(answer.text)}")


class _HeardEnough(Exception):
    """Raised by a receiver at the first piece."""


async def _stops_when_the_receiver_raises(backend: Backend, case: _Case) -> None:
    if not isinstance(backend, StreamingBackend):
        return
    pieces: list[str] = []

    def receive(piece: str) -> None:
        pieces.append(piece)
        raise _HeardEnough

    before = Leftovers.now()
    try:
        answer = await backend.stream(case.long_request, receive)
    except _HeardEnough:
        pass
    except Exception as error:
        raise _Broken(f"the receiver raised _HeardEnough, and it raised {error!r}") from error
    else:
        raise _Broken(f"the receiver raised, and it went on and returned {shown(answer)}")
    if len(pieces) > 1:
        raise _Broken(f"it gave {len(pieces)} pieces to a receiver that raised at the first")
    await _check_no_task_is_left(before, case, "the receiver raised")


async def _keeps_requests_apart(backend: Backend, case: _Case) -> None:
    """Ask questions of different lengths one by one, and then all at once: what each costs must be the same."""
    requests = [_longer(case.request, number) for number in range(_AT_ONCE)]
    alone = [await _generate(backend, request) for request in requests]
    together = await _all_at_once(backend, requests)
    if "usage" not in case.claims:
        return
    for one, other in zip(alone, together, strict=True):
        if one.usage.input_tokens != other.usage.input_tokens:
            tokens = f"{one.usage.input_tokens} tokens cost {other.usage.input_tokens} input tokens"
            raise _Broken(f"a question of {tokens} when it was asked together with others")


def _longer(request: Request, number: int) -> Request:
    return attrs.evolve(request, messages=(Message("user", "again " * 3**number), *request.messages))


async def _all_at_once(backend: Backend, requests: list[Request]) -> list[Generation]:
    answers: dict[int, Generation] = {}
    failures: list[_Broken] = []

    async def ask(number: int) -> None:
        pieces: list[str] = []
        try:
            if isinstance(backend, StreamingBackend):
                answers[number] = await _stream(backend, requests[number], pieces.append)
                _check_pieces(pieces, answers[number])
            else:
                answers[number] = await _generate(backend, requests[number])
        except _Broken as broken:
            failures.append(broken)

    async with anyio.create_task_group() as group:
        for number in range(len(requests)):
            group.start_soon(ask, number)
    if failures:
        raise failures[0]
    return [answers[number] for number in range(len(requests))]


async def _refuses_with_typed_errors(backend: Backend, case: _Case) -> None:
    try:
        answer = await backend.generate(case.bad_request or attrs.evolve(case.request, messages=()))
    except BackendError:
        return
    except Exception as error:
        raise _Broken(f"it raised {error!r}, which is no BackendError") from error
    if case.bad_request is not None:
        raise _Broken(f"it answered the bad request with {shown(answer)}")


async def _stops_when_cancelled(backend: Backend, case: _Case) -> None:
    await _generate(backend, case.request)
    before = Leftovers.now()
    for number in range(_CANCELLATIONS):
        # From before anything was sent to where the answer is under way.
        await _cancel_after(_LATEST_CANCELLATION_S * number / _CANCELLATIONS, backend, case)
    await _check_no_task_is_left(before, case, f"{_CANCELLATIONS} requests were cancelled")
    few = _SOCKETS_A_POOL_MAY_KEEP
    left = await left_behind(before, case.grace_s, is_fine=lambda left: len(left.sockets) <= few)
    if len(left.sockets) > few:
        raise _Broken(f"{len(left.sockets)} more sockets were open after {_CANCELLATIONS} requests were cancelled")
    await _generate(backend, case.request)


async def _cancel_after(wait_s: float, backend: Backend, case: _Case) -> None:
    cancelled_s: float | None = None
    outcomes: list[object] = []

    async def ask() -> None:
        try:
            outcomes.append(await backend.generate(case.long_request))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            outcomes.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await anyio.sleep(wait_s)
        if not outcomes:
            cancelled_s = anyio.current_time()
            group.cancel_scope.cancel()
    if cancelled_s is None:
        raise _Broken(f"its long_request ended within {wait_s:g} s, too soon to be cancelled: {shown(outcomes[0])}")
    if outcomes:
        raise _Broken(f"it was cancelled after {wait_s:g} s, and this came of it all the same: {shown(outcomes[0])}")
    took_s = anyio.current_time() - cancelled_s
    if took_s > case.grace_s:
        raise _Broken(f"it took {took_s:.2f} s to stop when it was cancelled; {case.grace_s:g} s are allowed")


_RULES = (
    _Rule("answers a request with a Generation", _answers),
    _Rule("reports the tokens of question and answer", _reports_usage, "usage"),
    _Rule("reports the tokens of an answer that is cancelled", _reports_usage_of_what_is_cancelled, "usage"),
    _Rule("obeys max_tokens", _obeys_max_tokens, "max_tokens"),
    _Rule("obeys stop words", _obeys_stop, "stop"),
    _Rule("gives the same answer for the same seed", _obeys_seed, "seed"),
    _Rule("streams pieces that add up to the text", _streams),
    _Rule("stops when the receiver of its stream raises, and lets that through", _stops_when_the_receiver_raises),
    _Rule("keeps requests apart that run at the same time", _keeps_requests_apart),
    _Rule("refuses what it can't answer with a BackendError", _refuses_with_typed_errors),
    _Rule("stops at once when it is cancelled, and lets the cancellation through", _stops_when_cancelled),
)
