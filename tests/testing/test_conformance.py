"""`check_backend` passes a correct backend, and names the rule that another one breaks."""

import asyncio  # noqa: TID251 - where tasks can be started that no task group owns
import random
import socket
import threading
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.to_thread
import attrs
import pytest
import trio
from anyio.lowlevel import checkpoint

from sampling import Generation, Image, Message, Options, Request, ToolCall, Usage, report_usage
from sampling.errors import BadRequest
from sampling.testing.conformance import RuleBroken, check_backend

TOKEN_S = 0.002
LONG = Request((Message("user", "all about rain"),), Options(max_tokens=1_000))


class Honest:
    """A backend that keeps every rule. Each subclass below breaks one."""

    async def generate(self, request: Request) -> Generation:
        return await self.stream(request, lambda _: None)

    async def stream(self, request: Request, receive: Callable[[str], None]) -> Generation:
        if not request.messages:
            raise BadRequest("there is no question")
        text = ""
        asked = self.input_tokens(request)
        for number in range(1, self.limit(request) + 1):
            await anyio.sleep(TOKEN_S)
            piece = self.piece(request, number)
            if any(word in piece for word in self.stop(request)):
                return Generation(text, Usage(asked, number), "stop")
            text += piece
            self.report(Usage(asked, number))
            receive(piece)
        return Generation(text, Usage(asked, self.limit(request)), "length")

    def input_tokens(self, request: Request) -> int:
        return sum(len(message.content.split()) for message in request.messages)

    def limit(self, request: Request) -> int:
        return request.options.max_tokens or 10

    def stop(self, request: Request) -> tuple[str, ...]:
        return tuple(request.options.stop)

    def piece(self, request: Request, number: int) -> str:
        return "rain " if number > 2 else "so "

    def report(self, usage: Usage) -> None:
        report_usage(usage)


async def check(factory: Callable[[], object], **arguments: object) -> tuple[str, ...]:
    return await check_backend(factory, **{"long_request": LONG, **arguments})


async def broken_rule(factory: Callable[[], object], **arguments: object) -> str:
    """Return the message for a backend that breaks a rule."""
    with pytest.raises(RuleBroken) as caught:
        await check(factory, **arguments)
    assert caught.value.rule in str(caught.value)
    return str(caught.value)


def test_an_honest_backend_passes_every_rule(run):
    """A correct backend is checked against all rules."""
    rules = run(check, Honest, claims=["usage", "max_tokens", "stop", "seed"])
    assert len(rules) == len(set(rules)) == 11


def test_only_what_a_backend_claims_is_checked(run):
    """A backend without stop words, token limits and counts passes if it does not claim to have them."""

    class Simple(Honest):
        def input_tokens(self, request):
            return 0

        def limit(self, request):
            return 10 if request is not LONG else 1_000

        def stop(self, request):
            return ()

        def report(self, usage):
            pass

    rules = run(check, Simple, claims=[])
    assert not any("max_tokens" in rule or "stop words" in rule or "tokens" in rule for rule in rules)


def test_a_backend_that_only_generates_passes(run):
    """Streaming is optional: a backend without `stream` is checked for the rest."""

    class Whole:
        async def generate(self, request: Request) -> Generation:
            return await Honest().generate(request)

    run(check, Whole)


def test_a_factory_may_return_a_context_manager_that_opens_a_backend(run):
    """The context manager opens the backend for every rule, and closes it after."""
    events = []

    @asynccontextmanager
    async def opened():
        events.append("open")
        yield Honest()
        events.append("close")

    rules = run(check, opened)
    assert events == ["open", "close"] * len(rules)


def test_an_unknown_claim_is_refused(run):
    """A misspelt claim would silently not be checked."""
    with pytest.raises(ValueError, match=r"claims must be some of .*, stop, tools, usage, got 'tokens'"):
        run(check, Honest, claims=["tokens"])


def test_what_has_no_generate_is_no_backend(run):
    """Anything else is an error that names the missing method."""
    assert "has a method `async def generate(request)`" in run(broken_rule, object)


class ReturnsText(Honest):
    async def generate(self, request):
        return (await super().generate(request)).text


class GivesNoReason(Honest):
    async def generate(self, request):
        answer = await super().generate(request)
        return Generation(answer.text, answer.usage, finish_reason="")


class SaysNothing(Honest):
    def piece(self, request, number):
        return ""


class Crashes(Honest):
    async def generate(self, request):
        raise KeyError("choices")


class ChangesTheRequest(Honest):
    async def generate(self, request):
        object.__setattr__(request, "options", Options(model="another"))
        return await super().generate(request)


class CountsNothing(Honest):
    async def generate(self, request):
        return Generation((await super().generate(request)).text)


class ForgetsWhatLosersSpent(Honest):
    def report(self, usage):
        pass


class TalksOn(Honest):
    def limit(self, request):
        return max(10, request.options.max_tokens or 0)


class IgnoresStopWords(Honest):
    def stop(self, request):
        return ()


class IgnoresTheSeed(Honest):
    def piece(self, request, number):
        return f"{random.random()} "


class StreamsEverythingTwice(Honest):
    async def stream(self, request, receive):
        return await super().stream(request, lambda piece: receive(piece + piece))


class StreamsBytes(Honest):
    async def stream(self, request, receive):
        return await super().stream(request, lambda piece: receive(piece.encode()))


class IgnoresItsReceiver(Honest):
    async def stream(self, request, receive):
        def shrug(piece):
            with suppress(Exception):
                receive(piece)

        return await super().stream(request, shrug)


class WrapsWhatTheReceiverRaises(Honest):
    async def stream(self, request, receive):
        try:
            return await super().stream(request, receive)
        except Exception as error:
            raise BadRequest("it failed") from error


class MixesRequestsUp(Honest):
    async def stream(self, request, receive):
        self.request = request
        await anyio.sleep(TOKEN_S)
        return await super().stream(self.request, receive)


class RefusesWithAnUntypedError(Honest):
    async def generate(self, request):
        request.messages[0]
        return await super().generate(request)


class SwallowsCancellation(Honest):
    async def generate(self, request):
        try:
            return await super().generate(request)
        except anyio.get_cancelled_exc_class():
            return Generation("never mind", Usage(1, 1))


class TurnsCancellationIntoAnError(Honest):
    async def generate(self, request):
        try:
            return await super().generate(request)
        except anyio.get_cancelled_exc_class():
            raise BadRequest("cancelled") from None


class TakesItsTimeToStop(Honest):
    async def generate(self, request):
        try:
            return await super().generate(request)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(5)


class AnswersAtOnce(Honest):
    def limit(self, request):
        return min(3, request.options.max_tokens)


@pytest.mark.parametrize(
    ("backend", "rule", "how"),
    [
        (ReturnsText, "answers a request with a Generation", "which is not a Generation"),
        (GivesNoReason, "answers a request with a Generation", "finish_reason ''"),
        (SaysNothing, "answers a request with a Generation", "no text"),
        (Crashes, "answers a request with a Generation", "it raised KeyError('choices')"),
        (ChangesTheRequest, "answers a request with a Generation", "it changed the request"),
        (CountsNothing, "reports the tokens of question and answer", "Usage(input_tokens=0"),
        (ForgetsWhatLosersSpent, "reports the tokens of an answer that is cancelled", "had reported"),
        (TalksOn, "obeys max_tokens", "with max_tokens=1 it generated 10 tokens"),
        (IgnoresStopWords, "obeys stop words", "there is a"),
        (IgnoresTheSeed, "gives the same answer for the same seed", "two answers"),
        (StreamsEverythingTwice, "streams pieces that add up to the text", "the pieces of its stream are"),
        (StreamsBytes, "streams pieces that add up to the text", "b'so ', which is not a str"),
        (IgnoresItsReceiver, "stops when the receiver of its stream raises", "went on and returned"),
        (WrapsWhatTheReceiverRaises, "stops when the receiver of its stream raises", "it raised BadRequest"),
        (MixesRequestsUp, "does not mix up requests that run at the same time", "together with others"),
        (RefusesWithAnUntypedError, "rejects a bad request", "which is not a BackendError"),
        (SwallowsCancellation, "stops at once when it is cancelled", "but it still ended with Generation"),
        (TurnsCancellationIntoAnError, "stops at once when it is cancelled", "but it still ended with BadRequest"),
        (TakesItsTimeToStop, "stops at once when it is cancelled", "it took 5.00 s to stop"),
        (AnswersAtOnce, "stops at once when it is cancelled", "too soon to be cancelled"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_backend_that_breaks_a_rule_is_told_which(backend, rule, how, run):
    """The message names the broken rule and what happened."""
    said = run(broken_rule, backend, claims=["usage", "max_tokens", "stop", "seed"])
    assert f"the rule is that a backend {rule}" in said
    assert how in said


def test_a_bad_request_that_is_answered_breaks_a_rule(run):
    """A backend must not answer the `bad_request`."""
    bad = Request((Message("user", "bad"),), Options(max_tokens=3))
    assert "it answered the bad request" in run(broken_rule, Honest, bad_request=bad)


def test_a_request_whose_extra_options_are_changed_counts_as_changed(run):
    """A frozen request can hold a list, and a list can be changed."""

    class Appends(Honest):
        async def generate(self, request):
            request.options.extra["tools"].append("mine")
            return await super().generate(request)

    request = Request((Message("user", "rain"),), Options(max_tokens=5, extra={"tools": []}))
    assert "it changed the request" in run(broken_rule, Appends, request=request)


# Real tasks, threads and sockets, so real time.

QUICKLY = {"claims": (), "grace_s": 0.1}


class StartsDetachedTasks(Honest):
    """Each answer starts a task that no task group owns."""

    tasks: list[asyncio.Task[None]]

    def __init__(self, only: Callable[[Request], bool]) -> None:
        self.only = only
        self.tasks = []
        self.enough = anyio.Event()

    async def generate(self, request):
        if self.only(request):
            self.start()
        return await super().generate(request)

    def start(self) -> None:
        try:
            trio.lowlevel.spawn_system_task(self.enough.wait, name="left behind")
        except RuntimeError:
            self.tasks.append(asyncio.get_running_loop().create_task(self.enough.wait(), name="left behind"))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("only", "rule", "when"),
    [
        (lambda request: request is not LONG, "answers a request", "its request was answered"),
        (lambda request: request is LONG, "stops at once when it is cancelled", "10 requests were cancelled"),
    ],
    ids=["answered", "cancelled"],
)
async def test_a_task_that_outlives_its_request_breaks_a_rule(only, rule, when):
    """Contract 10: a task that goes on after its request was answered, or cancelled, is found, by its name."""
    backend = StartsDetachedTasks(only)
    said = await broken_rule(lambda: backend, **QUICKLY)
    backend.enough.set()
    await checkpoint()
    assert f"the rule is that a backend {rule}" in said
    assert "the task" in said
    assert "left behind" in said
    assert when in said


@pytest.mark.anyio
async def test_a_thread_that_goes_on_breaks_a_rule():
    """Contract 10: a thread that still works when the backend is closed is found, by its name."""
    enough = threading.Event()
    threads = []

    class StartsThreads(Honest):
        async def generate(self, request):
            threads.append(threading.Thread(target=enough.wait, name="left behind"))
            threads[-1].start()
            return await super().generate(request)

    try:
        said = await broken_rule(StartsThreads, **QUICKLY)
    finally:
        enough.set()
        for thread in threads:
            thread.join()
    assert "the rule is that a backend leaves no task, thread or socket behind" in said
    assert "the thread 'left behind'" in said


@pytest.mark.anyio
async def test_a_thread_of_a_pool_that_waits_for_work_breaks_no_rule():
    """Idle threads of the pool of the event loop do not count."""

    class Works(Honest):
        async def generate(self, request):
            await anyio.to_thread.run_sync(lambda: None)
            return await super().generate(request)

    await check(Works, **QUICKLY)


@pytest.mark.anyio
async def test_a_socket_that_stays_open_breaks_a_rule():
    """Contract 10: a socket that is open when the backend is closed is found."""
    sockets = []

    class OpensSockets(Honest):
        async def generate(self, request):
            sockets.append(socket.socket())
            return await super().generate(request)

    try:
        said = await broken_rule(OpensSockets, **QUICKLY)
    finally:
        for left in sockets:
            left.close()
    assert "the rule is that a backend leaves no task, thread or socket behind" in said
    assert "the socket with descriptor" in said


@pytest.mark.anyio
async def test_a_socket_for_every_cancelled_request_breaks_a_rule():
    """An open backend may keep a few connections, but not one for each cancelled request."""

    class Pools(Honest):
        def __init__(self) -> None:
            self.sockets = []

        async def generate(self, request):
            used = socket.socket()
            self.sockets.append(used)
            answer = await super().generate(request)
            self.sockets.remove(used)
            used.close()
            return answer

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            for left in self.sockets:
                left.close()

    said = await broken_rule(Pools, **QUICKLY)
    assert "stops at once when it is cancelled" in said
    assert "10 more sockets were open after 10 requests were cancelled" in said


# Abilities that are checked only if they are claimed.

FULL = {
    "claims": ["usage", "max_tokens", "stop", "seed", "distinct_seeds", "tools", "parts"],
    "endings": {"length": Request((Message("user", "rain"),), Options(max_tokens=1))},
}


class Able(Honest):
    """A backend with tools, parts and seeds. Each subclass below lacks one."""

    call = ToolCall("1", "note_number", '{"number": 1}')

    async def stream(self, request, receive):
        self.refuse(request)
        if request.options.tool_choice == "required":
            return Generation("", Usage(1, 1), "tool_calls", tool_calls=[self.call] if self.call else ())
        return await super().stream(request, receive)

    def refuse(self, request):
        pass

    def input_tokens(self, request):
        return sum(1 + len(message.text.split()) for message in request.messages)

    def piece(self, request, number):
        return "so " if number == 1 + (request.options.seed or 0) % 3 else "rain "


class IgnoresSeeds(Able):
    def piece(self, request, number):
        return "rain "


class CallsNothing(Able):
    call = None


class CallsWithoutId(Able):
    call = ToolCall("", "note_number", "{}")


class CallsAnother(Able):
    call = ToolCall("1", "other", "{}")


class CallsWithoutJson(Able):
    call = ToolCall("1", "note_number", "{number")


class RefusesResults(Able):
    def refuse(self, request):
        if request.messages and request.messages[-1].role == "tool":
            raise BadRequest("what is this?")


class RefusesImages(Able):
    def refuse(self, request):
        if any(isinstance(part, Image) for message in request.messages for part in message.content):
            raise BadRequest("what is this?")


class EndsAsUsual(Able):
    async def stream(self, request, receive):
        answer = await super().stream(request, receive)
        return attrs.evolve(answer, finish_reason="stop")


def test_an_able_backend_passes_every_rule(run):
    """A correct backend is checked for all of its abilities."""
    assert 15 == len(run(check, Able, **FULL))


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (IgnoresSeeds, "the same answer with 5 different seeds"),
        (CallsNothing, "told to call a tool, and answered ''"),
        (CallsWithoutId, "has no id"),
        (CallsAnother, "it called 'other'"),
        (CallsWithoutJson, "not JSON"),
        (RefusesResults, "what is this?"),
        (RefusesImages, "accepts images along with text"),
        (EndsAsUsual, "an answer that ended with 'length' has the finish_reason 'stop'"),
    ],
)
def test_an_ability_that_is_claimed_and_not_there_is_found(run, kind, says):
    """A claimed ability that is missing breaks a rule, and the message says what happened."""
    assert says in run(broken_rule, kind, **FULL)
