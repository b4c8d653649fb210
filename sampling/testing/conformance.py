"""
Check that a backend follows the rules of the `Backend` protocol.

Call `check_backend` in a test of your backend, on asyncio and on trio:

    async def test_my_backend_keeps_its_promises():
        await check_backend(lambda: MyBackend(base_url))

For each rule, a backend is opened, tested and closed. No task, thread or socket may be left afterwards.
A broken rule raises `RuleBroken`, an AssertionError. Its message has the rule and what happened.
"""

from base64 import b64decode
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from typing import Any, Literal, TypeAlias, get_args

import anyio
import attrs

from sampling._arguments import check_number, short_repr
from sampling._completeness import incomplete
from sampling._picklable import Picklable
from sampling.errors import BackendError
from sampling.hooks import Hooks, IterationFinished
from sampling.messages import Generation, Message, Options, Request
from sampling.parts import Image, Text, ToolCall, ToolResult
from sampling.protocols import Backend, StreamingBackend
from sampling.strategies import RejectionSamplingStrategy
from sampling.testing.leftovers import Leftovers, left_behind
from sampling.tools import Tool
from sampling.usage import Usage

__all__ = ["BackendFactory", "Claim", "RuleBroken", "check_backend"]

Claim = Literal["usage", "max_tokens", "stop", "seed", "distinct_seeds", "tools", "parts"]
"""An optional ability of a backend. It is checked only if it is claimed."""

BackendFactory: TypeAlias = Callable[[], Backend | AbstractAsyncContextManager[Backend]]
"""Returns a backend, or an async context manager that opens and closes one."""

_ALL_CLAIMS = frozenset(get_args(Claim))
_CONCURRENT_REQUESTS = 5
_CANCELLATIONS = 10
_LATEST_CANCELLATION_S = 0.2
# A pool keeps some connections open. One for each cancelled request is a leak.
_SOCKETS_A_POOL_MAY_KEEP = 3
_SEEDS = 5
_TOOL_TOKENS = 256
_TOOL = Tool(
    "note_number",
    "Note a number, and get its place.",
    {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
)
# One red pixel, as a PNG that every decoder reads.
_PIXEL = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==")


class RuleBroken(Picklable, AssertionError):
    """A backend broke a rule, which is in `rule`."""

    def __init__(self, rule: str, how: str) -> None:
        super().__init__(f"the rule is that a backend {rule}; broken: {how}")
        self.rule = rule


async def check_backend(
    factory: BackendFactory,
    *,
    request: Request | None = None,
    long_request: Request | None = None,
    bad_request: Request | None = None,
    endings: Mapping[str, Request] | None = None,
    claims: Collection[Claim] = ("usage", "max_tokens", "stop"),
    grace_s: float = 1.0,
) -> tuple[str, ...]:
    """
    Check a backend, and return the rules that it was checked against.

    Args:
        factory: Returns a backend for each rule, or an async context manager that opens and closes one. Tasks, threads
            and sockets that remain after that break a rule.

        request: A request that the backend answers soon, with a few tokens.

        long_request: A request that takes seconds to answer. It is always cancelled.

        bad_request: A request that the backend must refuse. By default an empty conversation is sent. The backend may
            answer that one, but if it refuses, it must raise a `BackendError`.

        endings: Maps a finish_reason, such as "length" or "content_filter", to a request whose answer must have it.

        claims: Optional abilities of this backend. "usage" reports tokens, also of cancelled answers. "max_tokens" and
            "stop" obey these options. "seed" gives the same answer to the same request with the same seed, and
            "distinct_seeds" another one with another seed. "tools" calls a tool when required, and accepts its
            result. "parts" accepts images along with text.

        grace_s: The time to stop after a cancellation, and for tasks, threads and sockets to end.
    """
    case = _Case(
        request or _request("Tell me about rain.", max_tokens=16),
        long_request or _request("Tell me all about rain.", max_tokens=4_096),
        bad_request,
        dict(endings or {}),
        _check_claims(claims),
        check_number("grace_s", grace_s, above=0),
    )
    rules = [rule for rule in _RULES if rule.claim is None or rule.claim in case.claims]
    rules += [_ENDINGS] if case.endings else []
    for rule in rules:
        await _check(rule, case, factory)
    return tuple(rule.promise for rule in rules)


def _request(text: str, **options: Any) -> Request:
    return Request((Message("user", text),), Options(**options))


def _check_claims(claims: Collection[Claim]) -> frozenset[Claim]:
    unknown = sorted(set(claims) - _ALL_CLAIMS)
    if unknown:
        raise ValueError(f"claims must be some of {', '.join(sorted(_ALL_CLAIMS))}, got {short_repr(unknown[0])}")
    return frozenset(claims)


@attrs.frozen
class _Case:
    """The arguments of `check_backend`."""

    request: Request
    long_request: Request
    bad_request: Request | None
    endings: Mapping[str, Request]
    claims: frozenset[Claim]
    grace_s: float


@attrs.frozen
class _Rule:
    promise: str
    """The end of a sentence that begins with "a backend"."""

    check: Callable[[Backend, _Case], Awaitable[None]]
    claim: Claim | None = None


class _Violation(Exception):
    """A rule was broken. `_check` adds the rule to the message."""


async def _check(rule: _Rule, case: _Case, factory: BackendFactory) -> None:
    before = Leftovers.now()
    made = factory()
    async with made if isinstance(made, AbstractAsyncContextManager) else nullcontext(made) as backend:
        if not isinstance(backend, Backend):
            raise RuleBroken("has a method `async def generate(request)`", f"{short_repr(backend)} has none")
        try:
            await rule.check(backend, case)
        except _Violation as violation:
            raise RuleBroken(rule.promise, str(violation)) from violation.__cause__
    # The reference to the backend is kept until here, so that no destructor closes its sockets first.
    left = await left_behind(before, case.grace_s)
    if left:
        how = f"{left} still there {case.grace_s:g} s later, when it had been checked that it {rule.promise}"
        raise RuleBroken("leaves no task, thread or socket behind", how)


# Requests, with checks that every rule needs.


async def _generate(backend: Backend, request: Request) -> Generation:
    with _check_call(request):
        return _check_answer(await backend.generate(request))


async def _stream(backend: StreamingBackend, request: Request, receive: Callable[[str], None]) -> Generation:
    with _check_call(request):
        return _check_answer(await backend.stream(request, receive))


@contextmanager
def _check_call(request: Request) -> Generator[None]:
    before = repr(request)
    try:
        yield
    except _Violation:
        raise
    except Exception as error:
        raise _Violation(f"it raised {error!r} for {short_repr(request.messages)}") from error
    if repr(request) != before:
        raise _Violation(f"it changed the request, which is not its own, to {short_repr(request)}")


def _check_answer(answer: Any) -> Generation:
    if not isinstance(answer, Generation):
        raise _Violation(f"it returned {short_repr(answer)} ({type(answer).__name__}), which is not a Generation")
    reason: Any = answer.finish_reason
    if not isinstance(reason, str) or not reason:
        raise _Violation(f"it returned a Generation with the finish_reason {short_repr(reason)}, which is not a word")
    return answer


async def _check_no_task_is_left(before: Leftovers, case: _Case, when: str) -> None:
    """Raise if a task outlives its request."""
    # Threads and connections are allowed, because the backend is still open.
    left = await left_behind(before, case.grace_s, is_fine=lambda left: not left.tasks)
    if left.tasks:
        raise _Violation(f"{', '.join(left.tasks.values())} still there {case.grace_s:g} s after {when}")


def _with(request: Request, **options: Any) -> Request:
    return attrs.evolve(request, options=attrs.evolve(request.options, **options))


# The rules.


async def _answers(backend: Backend, case: _Case) -> None:
    # The first request may start something that the backend keeps, such as a pool.
    await _generate(backend, case.request)
    before = Leftovers.now()
    answer = await _generate(backend, case.request)
    await _check_no_task_is_left(before, case, "its request was answered")
    if not answer.text:
        raise _Violation("its answer has no text")


async def _reports_usage(backend: Backend, case: _Case) -> None:
    usage = (await _generate(backend, case.request)).usage
    if not usage.input_tokens or not usage.output_tokens:
        raise _Violation(f"it reported {usage} for a question and an answer that both have tokens")


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
        raise _Violation(f"it was cancelled during an answer and had reported {usages}")


async def _obeys_max_tokens(backend: Backend, case: _Case) -> None:
    for limit in (1, 4):
        answer = await _generate(backend, _with(case.request, max_tokens=limit))
        if answer.usage.output_tokens > limit:
            raise _Violation(f"with max_tokens={limit} it generated {answer.usage.output_tokens} tokens")
        if (words := len(answer.text.split())) > limit:
            raise _Violation(f"with max_tokens={limit} it answered with {words} words")


async def _obeys_stop(backend: Backend, case: _Case) -> None:
    # The most frequent letter, because a model that ignores the stop word is sure to use it.
    plain = await _generate(backend, case.request)
    letter = Counter(plain.text.strip()).most_common(1)[0][0]
    stopped = await _generate(backend, _with(case.request, stop=(letter,)))
    if letter in stopped.text:
        raise _Violation(f"with stop=({letter!r},) there is a {letter!r} in its answer")


async def _obeys_seed(backend: Backend, case: _Case) -> None:
    request = _with(case.request, seed=7)
    first, second = await _generate(backend, request), await _generate(backend, request)
    if first.text != second.text:
        raise _Violation("it gave two answers to one request with seed=7")


async def _tells_seeds_apart(backend: Backend, case: _Case) -> None:
    texts = {(await _generate(backend, _with(case.request, seed=seed))).text for seed in range(_SEEDS)}
    if len(texts) == 1:
        raise _Violation(f"it gave the same answer with {_SEEDS} different seeds")


async def _calls_tools(backend: Backend, case: _Case) -> None:
    # Room for a whole call: one that is cut off has no JSON.
    limit = max(case.request.options.max_tokens or 0, _TOOL_TOKENS)
    request = _with(case.request, tools=(_TOOL,), tool_choice="required", max_tokens=limit)
    answer = await _generate(backend, request)
    if not answer.tool_calls:
        raise _Violation(f"it was told to call a tool, and answered {short_repr(answer.text)}")
    for call in answer.tool_calls:
        _check_tool_call(call)
    if incomplete(answer, request.options) is not None:
        raise _Violation(f"it called a tool, and its finish_reason is {answer.finish_reason!r}")
    results = Message("tool", [ToolResult(call.id, "42") for call in answer.tool_calls])
    with_results = attrs.evolve(request, messages=(*request.messages, answer.message, results))
    await _generate(backend, _with(with_results, tool_choice=None))


def _check_tool_call(call: ToolCall) -> None:
    if not call.id:
        raise _Violation(f"a call of {call.name!r} has no id, which its result would refer to")
    if call.name != _TOOL.name:
        raise _Violation(f"it called {call.name!r}, and only {_TOOL.name!r} was offered")
    try:
        call.parse()
    except ValueError as error:
        raise _Violation(f"it called a tool with {short_repr(call.arguments)}: {error}") from None


async def _takes_parts(backend: Backend, case: _Case) -> None:
    question = Message("user", [Text("What is this?"), Image(_PIXEL)])
    await _generate(backend, attrs.evolve(case.request, messages=(question,)))
    # A text in parts is a text, also in the middle of a conversation.
    talk = (question, Message("assistant", [Text("A pixel.")]), Message("user", [Text("Which "), Text("colour?")]))
    await _generate(backend, attrs.evolve(case.request, messages=talk))


async def _says_how_it_ended(backend: Backend, case: _Case) -> None:
    for reason, request in case.endings.items():
        ended = (await _generate(backend, request)).finish_reason
        if ended != reason:
            raise _Violation(f"an answer that ended with {reason!r} has the finish_reason {ended!r}")


async def _streams(backend: Backend, case: _Case) -> None:
    if not isinstance(backend, StreamingBackend):
        return
    pieces: list[Any] = []
    answer = await _stream(backend, case.request, pieces.append)
    _check_pieces(pieces, answer)


def _check_pieces(pieces: list[Any], answer: Generation) -> None:
    odd = [piece for piece in pieces if not isinstance(piece, str)]
    if odd:
        raise _Violation(f"a piece of its stream is {short_repr(odd[0])}, which is not a str")
    text = "".join(pieces)
    if text != answer.text:
        raise _Violation(f"the pieces of its stream are {short_repr(text)}, and its text is {short_repr(answer.text)}")


class _ReceiverError(Exception):
    """Raised by the receiver of a stream."""


async def _stops_when_the_receiver_raises(backend: Backend, case: _Case) -> None:
    if not isinstance(backend, StreamingBackend):
        return
    pieces: list[str] = []

    def receive(piece: str) -> None:
        pieces.append(piece)
        raise _ReceiverError

    before = Leftovers.now()
    try:
        answer = await backend.stream(case.long_request, receive)
    except _ReceiverError:
        pass
    except Exception as error:
        raise _Violation(f"the receiver raised _ReceiverError, but it raised {error!r}") from error
    else:
        raise _Violation(f"the receiver raised, but it went on and returned {short_repr(answer)}")
    if len(pieces) > 1:
        raise _Violation(f"it gave {len(pieces)} pieces to a receiver that raised at the first")
    await _check_no_task_is_left(before, case, "the receiver raised")


async def _keeps_requests_apart(backend: Backend, case: _Case) -> None:
    # Requests have different lengths, so mixed-up requests have the wrong number of input tokens.
    requests = [_longer(case.request, number) for number in range(_CONCURRENT_REQUESTS)]
    alone = [await _generate(backend, request) for request in requests]
    together = await _generate_concurrently(backend, requests)
    if "usage" not in case.claims:
        return
    for one, other in zip(alone, together, strict=True):
        if one.usage.input_tokens != other.usage.input_tokens:
            tokens = f"{one.usage.input_tokens} tokens cost {other.usage.input_tokens} input tokens"
            raise _Violation(f"a question of {tokens} when it was asked together with others")


def _longer(request: Request, number: int) -> Request:
    return attrs.evolve(request, messages=(Message("user", "again " * 3**number), *request.messages))


async def _generate_concurrently(backend: Backend, requests: list[Request]) -> list[Generation]:
    answers: dict[int, Generation] = {}
    failures: list[_Violation] = []

    async def ask(number: int) -> None:
        pieces: list[str] = []
        try:
            if isinstance(backend, StreamingBackend):
                answers[number] = await _stream(backend, requests[number], pieces.append)
                _check_pieces(pieces, answers[number])
            else:
                answers[number] = await _generate(backend, requests[number])
        except _Violation as violation:
            failures.append(violation)

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
        raise _Violation(f"it raised {error!r}, which is not a BackendError") from error
    if case.bad_request is not None:
        raise _Violation(f"it answered the bad request with {short_repr(answer)}")


async def _stops_when_cancelled(backend: Backend, case: _Case) -> None:
    await _generate(backend, case.request)
    before = Leftovers.now()
    for number in range(_CANCELLATIONS):
        # The times range from before the request is sent to the middle of the answer.
        await _cancel_after(_LATEST_CANCELLATION_S * number / _CANCELLATIONS, backend, case)
    await _check_no_task_is_left(before, case, f"{_CANCELLATIONS} requests were cancelled")
    allowed = _SOCKETS_A_POOL_MAY_KEEP
    left = await left_behind(before, case.grace_s, is_fine=lambda left: len(left.sockets) <= allowed)
    if len(left.sockets) > allowed:
        raise _Violation(f"{len(left.sockets)} more sockets were open after {_CANCELLATIONS} requests were cancelled")
    await _generate(backend, case.request)


async def _cancel_after(wait_s: float, backend: Backend, case: _Case) -> None:
    cancelled_s: float | None = None
    outcomes: list[object] = []

    async def ask() -> None:
        try:
            outcomes.append(await backend.generate(case.long_request))
        except Exception as error:  # noqa: BLE001 - any error is reported
            outcomes.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await anyio.sleep(wait_s)
        if not outcomes:
            cancelled_s = anyio.current_time()
            group.cancel_scope.cancel()
    if cancelled_s is None:
        raise _Violation(
            f"its long_request ended within {wait_s:g} s, too soon to be cancelled: {short_repr(outcomes[0])}"
        )
    if outcomes:
        raise _Violation(f"it was cancelled after {wait_s:g} s, but it still ended with {short_repr(outcomes[0])}")
    took_s = anyio.current_time() - cancelled_s
    if took_s > case.grace_s:
        raise _Violation(f"it took {took_s:.2f} s to stop when it was cancelled, and {case.grace_s:g} s are allowed")


_RULES = (
    _Rule("answers a request with a Generation", _answers),
    _Rule("reports the tokens of question and answer", _reports_usage, "usage"),
    _Rule("reports the tokens of an answer that is cancelled", _reports_usage_of_what_is_cancelled, "usage"),
    _Rule("obeys max_tokens", _obeys_max_tokens, "max_tokens"),
    _Rule("obeys stop words", _obeys_stop, "stop"),
    _Rule("gives the same answer for the same seed", _obeys_seed, "seed"),
    _Rule("gives different answers for different seeds", _tells_seeds_apart, "distinct_seeds"),
    _Rule("calls tools, and accepts their results", _calls_tools, "tools"),
    _Rule("accepts images along with text", _takes_parts, "parts"),
    _Rule("streams pieces that add up to the text", _streams),
    _Rule("stops when the receiver of its stream raises, and lets that through", _stops_when_the_receiver_raises),
    _Rule("does not mix up requests that run at the same time", _keeps_requests_apart),
    _Rule("rejects a bad request with a BackendError", _refuses_with_typed_errors),
    _Rule("stops at once when it is cancelled, and lets the cancellation through", _stops_when_cancelled),
)

_ENDINGS = _Rule("reports how its answers ended", _says_how_it_ended)
