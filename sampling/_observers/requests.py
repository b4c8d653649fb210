"""
Let telemetry observe every request to a model, and every tool that is run.

An attempt may send several: retries, rounds of tools, and those of judges. So requests are observed where they leave
the library: in the backends for HTTP, and where any other backend is called. Without an observer, it costs one lookup
of a context variable.
"""

import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any, Protocol, TypeAlias

import anyio
import attrs

from sampling._arguments import wrong_type
from sampling.messages import Generation, Request
from sampling.parts import ToolCall, ToolResult
from sampling.protocols import as_generation
from sampling.tools import Tool
from sampling.usage import NO_USAGE, Usage

__all__ = [
    "Observer",
    "Observers",
    "SentRequest",
    "ToolRun",
    "is_observed_inside",
    "observe",
    "observers",
    "report_first_chunk",
    "report_to_observers",
    "running_tool",
    "send",
    "stop_observing",
]


@attrs.define(eq=False)
class SentRequest:
    """One request, while it is under way and when it has ended."""

    backend: object
    request: Request
    started_s: float
    """The start time on the clock of the event loop."""

    started_ns: int
    """The start time in nanoseconds since 1970."""

    elapsed_s: float = 0.0
    first_chunk_s: float | None = None
    """The seconds until the first part of the answer. None if it did not come as a stream."""

    generation: Generation | None = None
    error: BaseException | None = None
    reported: Usage | None = None
    """The usage that the backend reported while it ran."""

    sent_others: bool = False
    """True if the backend only passed the request on to others, which were observed."""

    marks: dict[object, Any] = attrs.field(factory=dict[object, Any])
    """What each observer remembers."""

    @property
    def usage(self) -> Usage | None:
        """The usage, or None if it is not known."""
        answered = NO_USAGE if self.generation is None else self.generation.usage
        used = answered if answered != NO_USAGE else self.reported
        return None if used is None or used == NO_USAGE else used


@attrs.define(eq=False)
class ToolRun:
    """One call of a tool, while it is under way and when it has ended."""

    call: ToolCall
    tool: Tool | None
    """None if there is no tool of that name."""

    result: ToolResult | None = None
    error_type: str | None = None
    """The type of the error. None if there was none, or if the call was cancelled."""

    marks: dict[object, Any] = attrs.field(factory=dict[object, Any])
    """What each observer remembers."""


class Observer(Protocol):
    """Something that is told of requests and of tools."""

    def request_started(self, sent: SentRequest) -> None:
        """Note a request that is about to be sent. Not called for backends that may pass it on to others."""

    def request_ended(self, sent: SentRequest) -> None:
        """Note a request that has ended in any way."""

    def tool_started(self, ran: ToolRun) -> None:
        """Note a tool that is about to run, in the task in which it runs."""

    def tool_ended(self, ran: ToolRun) -> None:
        """Note a tool that has ended in any way, in the same task."""


Observers: TypeAlias = tuple[Observer, ...]

_observers: ContextVar[Observers] = ContextVar("sampling_observers", default=())
_running: ContextVar[SentRequest | None] = ContextVar("sampling_request", default=None)

observers: Callable[[], Observers] = _observers.get
"""Return the observers of the running code."""


def observe(observer: Observer) -> Token[Observers] | None:
    """Add an observer to the running task and to those that it starts. Return None if it is there already."""
    known = _observers.get()
    return None if observer in known else _observers.set((*known, observer))


def stop_observing(token: Token[Observers]) -> None:
    """Restore the observers from before `observe`."""
    _observers.reset(token)


def report_to_observers(usage: Usage) -> None:
    """Note the usage of the request under way."""
    sent = _running.get()
    if sent is not None:
        sent.reported = usage


def report_first_chunk() -> None:
    """Note that the first part of the answer has arrived."""
    sent = _running.get()
    if sent is not None and sent.first_chunk_s is None:
        sent.first_chunk_s = anyio.current_time() - sent.started_s


@contextmanager
def running_tool(call: ToolCall, tool: Tool | None) -> Generator[ToolRun]:
    """Run a tool inside the block, under the eyes of the observers."""
    ran, watching = ToolRun(call, tool), _observers.get()
    for observer in watching:
        observer.tool_started(ran)
    try:
        yield ran
    finally:
        for observer in watching:
            observer.tool_ended(ran)


def is_observed_inside(backend: object) -> bool:
    """Return whether a backend observes the requests that it sends. A cache may send none at all."""
    return getattr(backend, "observed_inside", False) is True


async def send(
    backend: object, request: Request, answer: Callable[[Request], Awaitable[Generation | str]], *, real: bool = False
) -> Generation:
    """
    Send a request under the eyes of the observers.

    Args:
        backend: The backend that is asked.

        request: The request.

        answer: The function that sends it.

        real: True if this is a request to a server. Otherwise, the backend may be a function that only passes it on,
            and its requests count in its place.
    """
    watching, outer = _observers.get(), _running.get()
    sent = SentRequest(backend, request, anyio.current_time(), time.time_ns())
    token = _running.set(sent)
    if real:
        for observer in watching:
            observer.request_started(sent)
    try:
        generation = sent.generation = as_generation(await _awaitable(answer, request))
    except BaseException as error:
        sent.error = error
        raise
    else:
        return generation
    finally:
        _running.reset(token)
        sent.elapsed_s = anyio.current_time() - sent.started_s
        if outer is not None:
            outer.sent_others = True
        if real or not sent.sent_others:
            for observer in watching:
                observer.request_ended(sent)


def _awaitable(
    answer: Callable[[Request], Awaitable[Generation | str]], request: Request
) -> Awaitable[Generation | str]:
    answered = answer(request)
    if not hasattr(answered, "__await__"):
        raise wrong_type("backend", answer, "async: it answered without being awaited")
    return answered
