"""A layer that runs the tools that a model calls."""

from collections.abc import Iterable, Sequence
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any

import anyio
import anyio.to_thread
import attrs
from anyio.lowlevel import RunVar

from sampling._arguments import check_int, check_number, short_repr
from sampling._completeness import incomplete
from sampling._engine import scope as identity
from sampling._event_loop import as_exception, limiter_of_this_loop
from sampling._json.time_limit import within_time
from sampling._log import Logger
from sampling._observers.requests import ToolRun, running_tool
from sampling._redaction import Redactor
from sampling._serialization.messages import digest, plain_option
from sampling.backends.layers._identity import identity_of
from sampling.backends.layers._layer import Layer, Receive, TrackedReceiver, UsageMeter, call_backend
from sampling.backends.layers._tool_results import as_result
from sampling.errors import BadRequest, BudgetExceeded, UnexpectedCancellation
from sampling.messages import Generation, Message, Options, Request
from sampling.parts import ToolCall, ToolResult
from sampling.protocols import BackendLike
from sampling.tools import Tool
from sampling.usage import NO_USAGE, Usage

__all__ = ["ToolLoop"]

MAX_ROUNDS = "max_rounds"
"""The finish_reason of an answer that still calls tools after the last round."""

_MAX_BLOCKING_TOOLS = 32
_blocking_tools: RunVar[anyio.CapacityLimiter] = RunVar("sampling_blocking_tools")

log = Logger()


class ToolLoop(Layer):
    """
    A backend that runs the tools that the model calls, until the model answers without calling one.

    The final answer has the text of the last round, and the usage of all rounds. The calls and results before it are in
    `generation.turns`, and so in the context of the slice: a repair continues the whole conversation.

    Calls of one answer run at the same time: async functions in tasks, and sync ones in threads. An error goes back to
    the model as the result of its call: an exception of the tool, a timeout, a tool that does not exist, and arguments
    that are not JSON or do not match the schema. Cancelling the request cancels its tools. A thread can't be stopped:
    it is abandoned, and still counts towards the limit of 32 threads until it ends.

    Every round is a request: `slice.requests` shows the number, and a `Budget` has to have room for it.
    If the model still calls tools in round `max_rounds`, those calls are not run and the answer is returned with the
    finish_reason "max_rounds". A strategy treats it as incomplete, with a reason for the repair.

    Tools in the `Options` of a request are offered too. If the model calls one of those, its answer is returned,
    because running them is up to the application. `Options.tool_choice` is for the first round.

    Put it outside of other layers, `ToolLoop(Retrying(Limited(backend)), tools)`, so that a failed round is retried
    alone, and a running tool holds no slot.
    """

    def __init__(
        self, backend: BackendLike, tools: Iterable[Any], max_rounds: int = 8, *, timeout_s: float | None = 60.0
    ) -> None:
        """
        Wrap a backend.

        Args:
            backend: The backend to wrap.

            tools: The tools, which must have functions. A function becomes a tool with `tool(function)`.

            max_rounds: The maximum number of requests for one answer.

            timeout_s: The time limit of each call of a tool. Without one, a cancellation waits for sync tools to end.
        """
        super().__init__(backend)
        self.tools: tuple[Tool, ...] = tuple(Options(tools=tools).tools)
        if not self.tools:
            raise ValueError("tools must not be empty: pass at least one tool or function")
        for tool in self.tools:
            if tool.function is None:
                raise ValueError(f"tools must have functions, and {tool.name!r} has none: offer it in Options.tools")
        self.max_rounds: int = check_int("max_rounds", max_rounds, least=1)
        self.timeout_s: float | None = None if timeout_s is None else check_number("timeout_s", timeout_s, above=0)

    async def _answer(self, request: Request, receive: Receive | None) -> Generation:
        rounds = _Rounds(self, self._with_tools(request), None if receive is None else TrackedReceiver(receive))
        return await rounds.run()

    def _with_tools(self, request: Request) -> Request:
        """Return a request that offers the tools, or raise `BadRequest` before anything is sent."""
        options = request.options
        try:
            return attrs.evolve(request, options=attrs.evolve(options, tools=(*self.tools, *options.tools)))
        except ValueError as error:
            raise BadRequest(f"options.{error}") from None

    def fingerprint(self) -> str:
        """Return the model and the tools, for caches."""
        tools = [[plain_option("tools", tool), identity_of(tool.function)] for tool in self.tools]
        return digest([identity_of(self.inner[0]), tools, self.max_rounds])

    def _settings(self) -> dict[str, object]:
        return {"tools": [tool.name for tool in self.tools], "max_rounds": self.max_rounds}


@attrs.define
class _Rounds:
    """The rounds of one request."""

    _loop: ToolLoop
    _request: Request
    """The first request, with the tools."""

    _receiver: TrackedReceiver | None
    _spent: Usage = NO_USAGE
    _turns: tuple[Message, ...] = ()

    async def run(self) -> Generation:
        """Ask, and run tools, until there is an answer."""
        number = 1
        answer = await self._ask(number)
        while self._is_for_tools(answer):
            if number == self._loop.max_rounds:
                answer = attrs.evolve(answer, finish_reason=MAX_ROUNDS)
                break
            await self._run_tools(answer)
            number += 1
            answer = await self._ask(number)
        return attrs.evolve(answer, usage=self._spent, turns=(*self._turns, *answer.turns))

    async def _run_tools(self, answer: Generation) -> None:
        if self._receiver is not None:
            # Words before a call are not the answer.
            self._receiver.restart()
        results = await _Calls(self._loop, answer.tool_calls, self).run()
        self._turns = (*self._turns, *answer.turns, answer.message, Message("tool", results))

    async def _ask(self, number: int) -> Generation:
        request = self._request if number == 1 else await self._next_request(number)
        meter = UsageMeter(self._spent)
        with meter:
            answer = await call_backend(self._loop.inner[0], request, self._receiver)
        if answer.usage == NO_USAGE and meter.used is not None:
            self._spent = meter.used
        else:
            self.add_usage(answer.usage)
        return _with_unique_ids(answer, (*self._request.messages, *self._turns))

    async def _next_request(self, number: int) -> Request:
        request = self._request
        messages = (*request.messages, *self._turns)
        await identity.reserve_request(
            prompt_chars=sum([message.chars for message in messages]),
            max_tokens=request.options.max_tokens,
            used=self._spent,
            model=request.options.model,
        )
        key = request.idempotency_key
        choice = request.options.tool_choice
        return attrs.evolve(
            request,
            messages=messages,
            # A model that must call a tool would never answer.
            options=attrs.evolve(request.options, tool_choice=choice if choice == "none" else None),
            # A server that knows the key would repeat its first answer.
            idempotency_key=None if key is None else f"{key}:{number}",
        )

    def add_usage(self, usage: Usage) -> None:
        """Add the usage of a round or of a tool. It is paid even if the request is cancelled later."""
        if usage != NO_USAGE:
            self._spent += usage
            identity.report_usage(self._spent)

    def _is_for_tools(self, answer: Generation) -> bool:
        """Return whether an answer is complete, and calls only tools that are run here."""
        others = {tool.name for tool in self._request.options.tools} - {tool.name for tool in self._loop.tools}
        return (
            bool(answer.tool_calls)
            and incomplete(answer, self._request.options) is None
            and not any(call.name in others for call in answer.tool_calls)
        )


def _with_unique_ids(answer: Generation, conversation: Sequence[Message]) -> Generation:
    """Return an answer whose calls have ids that no other call has. Ids that are unique stay as they are."""
    if not answer.tool_calls:
        return answer
    taken = {part.id for message in conversation for part in message.content if isinstance(part, ToolCall)}
    calls: list[ToolCall] = []
    for call in answer.tool_calls:
        if not call.id or call.id in taken:
            call = attrs.evolve(call, id=_free_id(taken))  # noqa: PLW2901 - the same call
        taken.add(call.id)
        calls.append(call)
    return attrs.evolve(answer, tool_calls=calls)


def _free_id(taken: set[str]) -> str:
    return next(name for number in range(len(taken) + 1) if (name := f"call_{number}") not in taken)


@attrs.define
class _Calls:
    """The tool calls of one answer, which run at the same time."""

    _loop: ToolLoop
    _calls: Sequence[ToolCall]
    _account: _Rounds
    _results: dict[int, ToolResult] = attrs.field(factory=dict[int, ToolResult])
    _failures: list[BaseException] = attrs.field(factory=list[BaseException])

    async def run(self) -> list[ToolResult]:
        """Run all calls, and return their results in order."""
        async with anyio.create_task_group() as group:
            for place, call in enumerate(self._calls):
                group.start_soon(self._run_accounted, place, call, group.cancel_scope)
        if self._failures:
            raise self._failures[0]
        return [self._results[place] for place in range(len(self._calls))]

    async def _run_accounted(self, place: int, call: ToolCall, siblings: anyio.CancelScope) -> None:
        """Run one call, and add what it reports as its usage."""
        part = identity.part_of_current()
        entered = None if part is None else identity.enter_part(part)
        try:
            tool = next((tool for tool in self._loop.tools if tool.name == call.name), None)
            with running_tool(call, tool) as ran:
                self._results[place] = ran.result = await self._run(ran)
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001
            # Collected, because a task group would wrap it.
            self._failures.append(error)
            siblings.cancel()
        finally:
            if part is not None and entered is not None:
                identity.leave_part(entered)
                self._account.add_usage(part.reported or NO_USAGE)

    async def _run(self, ran: ToolRun) -> ToolResult:
        tool, call = ran.tool, ran.call
        if tool is None:
            names = ", ".join([tool.name for tool in self._loop.tools])
            return _failed(ran, "unknown_tool", f"there is no tool {short_repr(call.name)}: call one of {names}")
        try:
            begun = within_time(partial(tool.arguments_of, call))
            arguments = await begun if isawaitable(begun) else begun
        except ValueError as error:
            return _failed(ran, "invalid_arguments", f"the call is invalid: {error}")
        try:
            with anyio.move_on_after(self._loop.timeout_s) as limit:
                return as_result(call.id, await self._call(tool, arguments))
        except (BudgetExceeded, MemoryError, RecursionError) as error:
            ran.error_type = type(error).__name__
            raise
        except BaseException as raised:  # noqa: BLE001, ASYNC103 - what must end the task is raised again
            # It raises a cancellation that was requested.
            return _broken(ran, as_exception(raised, UnexpectedCancellation))  # noqa: ASYNC104
        if not limit.cancelled_caught:
            raise RuntimeError("a tool was left without a result")
        log.warning("tool_timed_out", tool=tool.name, timeout_s=self._loop.timeout_s)
        return _failed(ran, "timeout", f"the tool took longer than {self._loop.timeout_s:g} s")

    async def _call(self, tool: Tool, arguments: dict[str, Any]) -> object:
        function: Any = tool.function
        if iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
            return await function(**arguments)
        # Not anyio's own limiter: tools that hang must not take the application's threads away.
        limiter = limiter_of_this_loop(_blocking_tools, _MAX_BLOCKING_TOOLS)
        # In a list, since trio refuses a coroutine as the result of a thread.
        [result] = await anyio.to_thread.run_sync(
            lambda: [partial(function, **arguments)()],
            abandon_on_cancel=self._loop.timeout_s is not None,
            limiter=limiter,
        )
        return await result if isawaitable(result) else result


def _broken(ran: ToolRun, error: Exception) -> ToolResult:
    # Only the type, because a message may contain secrets.
    kind = type(error).__name__
    log.warning("tool_failed", tool=ran.call.name, error_type=kind)
    try:
        message = Redactor().sample(str(error))
    except Exception:  # noqa: BLE001 - an exception whose own code is broken is still the tool's
        message = ""
    return _failed(ran, kind, f"the tool failed: {message}" if message else "the tool failed")


def _failed(ran: ToolRun, error_type: str, reason: str) -> ToolResult:
    ran.error_type = error_type
    return ToolResult(ran.call.id, reason, is_error=True)
