"""A backend with scripted replies."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import anyio
import attrs

from sampling._arguments import check_number, wrong_type
from sampling.messages import Generation, Request

__all__ = ["After", "ScriptExhausted", "ScriptedBackend", "ScriptedReply"]


@attrs.frozen
class After:
    """A delayed reply: `After(0.5, "yes")`, `After(2.0, RateLimited())`."""

    delay_s: float
    reply: str | Generation | BaseException

    def __attrs_post_init__(self) -> None:
        check_number("delay_s", self.delay_s, least=0)
        if not isinstance(self.reply, str | Generation | BaseException):
            raise wrong_type("reply", self.reply, "a text, a Generation or an exception")


ScriptedReply: TypeAlias = str | Generation | BaseException | After
"""The reply to one request: an answer, or an exception to raise."""


class ScriptExhausted(AssertionError):
    """The backend got more requests than its script has replies."""


class ScriptedBackend:
    """
    A backend that replies from a script.

    The script is an iterable of replies, in the order of the requests, or a function of the request.
    `requests` has every request. Each is also in `returned`, `raised` or `cancelled`, or counted by `in_flight`.
    """

    def __init__(self, script: Iterable[ScriptedReply] | Callable[[Request], ScriptedReply]) -> None:
        if isinstance(script, str) or not (callable(script) or isinstance(script, Iterable)):
            raise wrong_type("script", script, "an iterable of replies, or a function of the request")
        self._reply_to = script if callable(script) else _in_order(iter(script))
        self.requests: list[Request] = []
        self.returned: list[Request] = []
        self.raised: list[Request] = []
        self.cancelled: list[Request] = []
        self.max_in_flight: int = 0
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        """The number of requests without an outcome yet."""
        return self._in_flight

    async def generate(self, request: Request) -> Generation:
        """Return or raise the next reply of the script."""
        self.requests.append(request)
        self._in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self._in_flight)
        # A cancellation is the only way out that sets no other outcome.
        outcome = self.cancelled
        try:
            answer = await self._answer(request)
        except Exception:
            outcome = self.raised
            raise
        else:
            outcome = self.returned
            return answer
        finally:
            self._in_flight -= 1
            outcome.append(request)

    async def _answer(self, request: Request) -> Generation:
        reply = self._reply_to(request)
        delay_s, reply = (reply.delay_s, reply.reply) if isinstance(reply, After) else (0.0, reply)
        await anyio.sleep(delay_s)
        if isinstance(reply, BaseException):
            raise reply
        if not isinstance(reply, str | Generation):
            raise wrong_type("a reply of the script", reply, "a text, a Generation, an exception or After(delay_s, …)")
        return reply if isinstance(reply, Generation) else Generation(reply)

    def __repr__(self) -> str:
        return f"ScriptedBackend({len(self.requests)} requests, {self._in_flight} in flight)"


def _in_order(script: Iterator[ScriptedReply]) -> Callable[[Request], ScriptedReply]:
    def reply_to(request: Request) -> ScriptedReply:
        try:
            return next(script)
        except StopIteration:
            message = f"the script has no reply left for iteration {request.iteration}: add one, or give a function"
            raise ScriptExhausted(message) from None

    return reply_to
