"""A layer that holds back: so many at once, so many a second."""

import math
from collections.abc import Hashable
from weakref import WeakValueDictionary

import anyio
import attrs
from anyio.lowlevel import checkpoint

from sampling._arguments import check_bool, check_int, check_number, shown
from sampling._text import estimate_tokens
from sampling.backends._limits import AdaptiveLimit, LoopWatch, Slots, TokenBucket
from sampling.backends.layers._layer import Layer, Receive, ask
from sampling.errors import RateLimited, ServerError, Timeout
from sampling.messages import Generation, Request
from sampling.protocols import BackendLike

__all__ = ["Limited", "LimitedStatistics"]

_MOST_IN_FLIGHT = 1_000_000


@attrs.frozen
class LimitedStatistics:
    """The state of a limiter."""

    in_flight: int
    """Requests that may be with the backend: they hold a place."""

    waiting: int
    """Requests that wait for one."""

    limit: int | None
    """How many may be in flight now; None where only the rate is limited."""


class Limited(Layer):
    """
    Send no more than so many requests at once, and no more than so many requests or tokens a second.

    All calls through one `Limited` share its limits, and so do all that are made with the same `key`.
    Who comes first is served first; who is cancelled while waiting leaves no trace.

    With `adaptive=True` it finds out by itself how much at once the backend can take (see `AdaptiveLimit`):
    it backs off when it is refused and when answers begin to wait in the backend's queue, and comes back after.

    Put `Retrying` around it, so that a request that waits for its next try does not keep a place,
    and `Cached` around it too, so that an answer which is there already needs none.
    """

    def __init__(
        self,
        backend: BackendLike,
        *,
        max_in_flight: int | None = None,
        requests_per_s: float | None = None,
        tokens_per_s: float | None = None,
        adaptive: bool = False,
        key: Hashable | None = None,
    ) -> None:
        """
        Wrap a backend.

        Args:
            backend: What to ask.

            max_in_flight: How many requests may be with the backend at once; with `adaptive`, never more than that.

            requests_per_s: Requests are sent this far apart, without bursts.

            tokens_per_s: Tokens of prompts and answers together. What an answer will take is guessed from
                `max_tokens` or the longest answer so far, and put right when it is there.

            adaptive: Find out how many at once are good.

            key: Share the limits with all others that have the same key, such as all that use one API key.
        """
        super().__init__(backend)
        settings = _Settings(max_in_flight, requests_per_s, tokens_per_s, adaptive)
        self._key = key
        self._limiter = _Limiter(settings) if key is None else _shared(key, settings)

    @property
    def statistics(self) -> LimitedStatistics:
        """The current state of the limits."""
        return self._limiter.statistics

    async def _answer(self, request: Request, receive: Receive | None) -> Generation:
        limiter = self._limiter
        async with limiter.slots.hold():
            guess = await limiter.pace(request)
            flight = limiter.begin(receive)
            try:
                generation = await ask(self.inner[0], request, limiter.receiver(flight, self.inner[0]))
            except BaseException as error:
                if _wants_less(error):
                    limiter.refused(guess, getattr(error, "retry_after_s", None))
                else:
                    limiter.abandoned()
                raise
            limiter.answered(flight, generation, guess)
            return generation

    def _settings(self) -> dict[str, object]:
        given = self._limiter.settings.given()
        return given if self._key is None else {**given, "key": self._key}


@attrs.frozen
class _Settings:
    max_in_flight: int | None
    requests_per_s: float | None
    tokens_per_s: float | None
    adaptive: bool

    def __attrs_post_init__(self) -> None:
        if self.max_in_flight is not None:
            check_int("max_in_flight", self.max_in_flight, least=1)
        if self.requests_per_s is not None:
            check_number("requests_per_s", self.requests_per_s, above=0)
        if self.tokens_per_s is not None:
            check_number("tokens_per_s", self.tokens_per_s, above=0)
        check_bool("adaptive", self.adaptive)
        if not self.given():
            raise ValueError("nothing is limited: give max_in_flight, requests_per_s, tokens_per_s or adaptive=True")

    def given(self) -> dict[str, object]:
        """Return what was asked for."""
        return {name: value for name, value in attrs.asdict(self).items() if value}


@attrs.define
class _Flight:
    """One request on its way, as seen by an adaptive limit: when it left, and when its text began to come."""

    sent_at: float
    receive: Receive | None
    first_at: float | None = None
    pieces: int = 0

    def __call__(self, piece: str) -> None:
        self.pieces += 1
        if self.first_at is None:
            self.first_at = anyio.current_time()
        if self.receive is not None:
            self.receive(piece)


class _Limiter:
    """The limits themselves, apart from whom they are used by."""

    def __init__(self, settings: _Settings) -> None:
        self.settings = settings
        self._adaptive = AdaptiveLimit(most=settings.max_in_flight or _MOST_IN_FLIGHT) if settings.adaptive else None
        self.slots = Slots(self._limit or _MOST_IN_FLIGHT)
        self._turn = Slots(1)
        self._loop = LoopWatch()
        self._requests: TokenBucket | None = None
        self._tokens: TokenBucket | None = None
        self._longest_answer = 0

    @property
    def _limit(self) -> int | None:
        return self.settings.max_in_flight if self._adaptive is None else self._adaptive.limit

    @property
    def statistics(self) -> LimitedStatistics:
        return LimitedStatistics(self.slots.in_use, self.slots.waiting, self._limit)

    async def pace(self, request: Request) -> int:
        """Wait until the rate allows this request, and return its expected tokens."""
        if self._loop.is_another():
            self._start_clock()
        tokens = self._guess(request)
        if not self._is_paced():
            await checkpoint()
            return tokens
        async with self._turn.hold():
            # More than once, for an answer that turns out longer than expected moves the instant.
            while (ready_at := self._ready_at(tokens)) > anyio.current_time():  # noqa: ASYNC110
                await anyio.sleep_until(ready_at)
            now = anyio.current_time()
            if self._requests is not None:
                self._requests.take(1, now)
            if self._tokens is not None:
                self._tokens.take(tokens, now)
        return tokens

    def _is_paced(self) -> bool:
        paused = self._adaptive is not None and self._adaptive.paused_until > -math.inf
        return paused or self._requests is not None or self._tokens is not None

    def _start_clock(self) -> None:
        """Begin anew on an event loop whose clock counts from another zero."""
        self._loop.settle()
        if self.settings.requests_per_s is not None:
            self._requests = TokenBucket(self.settings.requests_per_s)
        if self.settings.tokens_per_s is not None:
            self._tokens = TokenBucket(self.settings.tokens_per_s, burst=self.settings.tokens_per_s)
        if self._adaptive is not None:
            self._adaptive.restart_clock()

    def _guess(self, request: Request) -> int:
        if self._tokens is None:
            return 0
        chars = sum(len(message.content) for message in request.messages)
        return estimate_tokens(chars) + (request.options.max_tokens or self._longest_answer)

    def _ready_at(self, tokens: int) -> float:
        return max(
            -math.inf if self._requests is None else self._requests.ready_at(1),
            -math.inf if self._tokens is None else self._tokens.ready_at(tokens),
            -math.inf if self._adaptive is None else self._adaptive.paused_until,
        )

    def begin(self, receive: Receive | None) -> _Flight:
        """Note that a request leaves."""
        if self._adaptive is not None:
            self._adaptive.sent()
        return _Flight(anyio.current_time(), receive)

    def receiver(self, flight: _Flight, backend: object) -> Receive | None:
        """Return who is to receive the text: an adaptive limit wants to see it come, even if nobody else does."""
        return flight if self._adaptive is not None and hasattr(backend, "stream") else flight.receive

    def answered(self, flight: _Flight, generation: Generation, guess: int) -> None:
        """Put the guess right, and learn from the answer."""
        now = anyio.current_time()
        tokens = generation.usage.output_tokens
        self._longest_answer = max(self._longest_answer, tokens)
        if self._tokens is not None and generation.usage.total_tokens:
            self._tokens.take(generation.usage.total_tokens - guess, now)
        if self._adaptive is not None:
            # Text that came in one piece came at the end: that says nothing of when it began.
            first_at = flight.first_at if flight.pieces > 1 else None
            self._adaptive.answered(sent_at=flight.sent_at, now=now, first_at=first_at, tokens=tokens)
            self.slots.total = self._adaptive.limit

    def refused(self, guess: int, retry_after_s: float | None) -> None:
        """Lower the limit after a refusal. The refused request used no tokens."""
        now = anyio.current_time()
        if self._tokens is not None:
            self._tokens.take(-guess, now)
        if self._adaptive is not None:
            self._adaptive.refused(now=now, retry_after_s=retry_after_s)
            self.slots.total = self._adaptive.limit

    def abandoned(self) -> None:
        """Note a request that was cancelled, or failed for a reason of its own."""
        if self._adaptive is not None:
            self._adaptive.abandoned()


def _wants_less(error: BaseException) -> bool:
    """Tell whether an error says that there is too much to do, in one way or another."""
    overloaded = isinstance(error, ServerError) and error.status in {503, 529}
    return overloaded or isinstance(error, RateLimited | Timeout)


_limiters: WeakValueDictionary[Hashable, _Limiter] = WeakValueDictionary()


def _shared(key: Hashable, settings: _Settings) -> _Limiter:
    limiter = _limiters.setdefault(key, _Limiter(settings))
    if limiter.settings != settings:
        raise ValueError(f"key {shown(key)} is in use with other limits: {limiter.settings.given()}")
    return limiter
