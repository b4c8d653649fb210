"""A layer that limits concurrency and rate."""

import math
from collections.abc import Hashable
from threading import Lock
from weakref import WeakValueDictionary

import anyio
import attrs
from anyio.lowlevel import checkpoint

from sampling._arguments import check_bool, check_int, check_number, short_repr
from sampling._engine.scope import report_unsent
from sampling._event_loop.lending import lendable
from sampling._text import estimate_tokens
from sampling.backends._limits import AdaptiveLimit, HeldSlot, SharedClock, SlotPool, TokenBucket
from sampling.backends.layers._layer import Layer, Receive, call_backend, forget_text, is_restartable
from sampling.errors import RateLimited, ServerError, Timeout
from sampling.messages import Generation, Request
from sampling.protocols import BackendLike

__all__ = ["Limited", "LimitedStatistics"]

_SHORTEST_WAIT_S = 1e-9
"""Shorter waits count as none, because adding them to a float clock may not change it."""

_MOST_IN_FLIGHT = 1_000_000
"""The size of a slot pool without a limit."""


@attrs.frozen
class LimitedStatistics:
    """The state of a limiter."""

    in_flight: int
    """The number of requests that hold a slot."""

    waiting: int
    """The number of requests that wait for a slot."""

    limit: int | None
    """The current number of slots, or None if only the rate is limited."""


class Limited(Layer):
    """
    A backend that limits requests in flight, requests per second and tokens per second.

    All calls through one `Limited` share its limits, and so do all instances with the same `key`.
    They may run in several threads, with an event loop each, as `sample_sync` does.
    Requests are served first come, first served. A request that is cancelled while it waits leaves the queue.
    A request that waits for its budget, such as the next round of a `ToolLoop` inside, lends its slot to others.

    With `adaptive=True` it adapts the number of requests in flight to the backend (see `AdaptiveLimit`):
    it lowers the limit when the backend refuses a request or starts to queue, and raises it again afterwards.

    Put `Retrying` around it, so that a request that waits for its next try holds no slot,
    and `Cached` around that, so that a cached answer needs no slot.
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
            backend: The backend to wrap.

            max_in_flight: The maximum number of requests in flight. With `adaptive`, the upper bound of the limit.

            requests_per_s: The rate of requests. They are evenly spaced, without bursts.

            tokens_per_s: The rate of tokens, prompts and answers together. The length of an answer is estimated from
                `max_tokens` or the longest answer so far, and corrected when it has arrived.

            adaptive: Adapt the number of requests in flight to the backend.

            key: Share the limits with all instances that have the same key, such as all that use one API key.
        """
        super().__init__(backend)
        settings = _Settings(max_in_flight, requests_per_s, tokens_per_s, adaptive)
        self._key = key
        self._limiter = _Limiter(settings) if key is None else _shared_limiter(key, settings)

    @property
    def statistics(self) -> LimitedStatistics:
        """The current state of the limits."""
        return self._limiter.statistics

    async def _answer(self, request: Request, receive: Receive | None) -> Generation:
        limiter, sent = self._limiter, False
        try:
            async with limiter.slots.hold() as slot:
                estimate = await limiter.wait_for_rate(request)
                sent = True
                return await self._send(request, receive, slot, estimate)
        finally:
            if not sent:
                report_unsent(self)

    async def _send(self, request: Request, receive: Receive | None, slot: HeldSlot, estimate: int) -> Generation:
        limiter = self._limiter
        tracked = limiter.begin(receive)
        try:
            with lendable(slot):
                generation = await call_backend(self.inner[0], request, limiter.receiver(tracked, self.inner[0]))
        except BaseException as error:
            if _signals_overload(error):
                limiter.refused(estimate, getattr(error, "retry_after_s", None))
            else:
                limiter.abandoned()
            raise
        limiter.answered(tracked, generation, estimate)
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
        """Return the limits that are set."""
        return {name: value for name, value in attrs.asdict(self).items() if value}


@attrs.define
class _TrackedRequest:
    """A request in flight, and a receiver that records when its first text arrives."""

    clock: SharedClock
    sent_at: float
    receive: Receive | None
    first_at: float | None = None
    pieces: int = 0

    @property
    def restartable(self) -> bool:
        return self.receive is None or is_restartable(self.receive)

    def restart(self) -> None:
        if self.receive is not None:
            forget_text(self.receive)

    def __call__(self, piece: str) -> None:
        self.pieces += 1
        if self.first_at is None:
            self.first_at = self.clock.now()
        if self.receive is not None:
            self.receive(piece)


class _Limiter:
    """The limits, which several `Limited` instances may share."""

    def __init__(self, settings: _Settings) -> None:
        self.settings = settings
        self._adaptive = AdaptiveLimit(most=settings.max_in_flight or _MOST_IN_FLIGHT) if settings.adaptive else None
        self.slots = SlotPool(self._limit or _MOST_IN_FLIGHT)
        self._rate_lock = SlotPool(1)
        self._clock = SharedClock()
        # Held only for a few steps that never wait, so it does not block an event loop.
        self._lock = Lock()
        self._requests: TokenBucket | None = None
        self._tokens: TokenBucket | None = None
        self._longest_answer = 0
        self._start_clock()

    @property
    def _limit(self) -> int | None:
        return self.settings.max_in_flight if self._adaptive is None else self._adaptive.limit

    @property
    def statistics(self) -> LimitedStatistics:
        return LimitedStatistics(self.slots.in_use, self.slots.waiting, self._limit)

    async def wait_for_rate(self, request: Request) -> int:
        """Wait until the rate allows this request, and return its expected tokens."""
        with self._lock:
            if self._clock.has_run_ahead():
                self._start_clock()
            self._clock.now()
        tokens = self._estimate(request)
        if not self._is_paced():
            # Still a checkpoint, so that every request can be cancelled and lets others run.
            await checkpoint()
            return tokens
        # One at a time, so that requests pass in the order in which they came.
        async with self._rate_lock.hold():
            # In a loop, because an answer that is longer than estimated moves the time while this sleeps.
            while (wait_s := self._take_if_ready(tokens)) > 0:  # noqa: ASYNC110
                await anyio.sleep(wait_s)
        return tokens

    def _take_if_ready(self, tokens: int) -> float:
        """Take this request from the rates, or return the seconds until that is possible."""
        with self._lock:
            now = self._clock.now()
            wait_s = self._ready_at(tokens) - now
            if wait_s > _SHORTEST_WAIT_S:
                return wait_s
            if self._requests is not None:
                self._requests.take(1, now)
            if self._tokens is not None:
                self._tokens.take(tokens, now)
        return 0.0

    def _is_paced(self) -> bool:
        paused = self._adaptive is not None and self._adaptive.paused_until > -math.inf
        return paused or self._requests is not None or self._tokens is not None

    def _start_clock(self) -> None:
        """Reset all times."""
        if self.settings.requests_per_s is not None:
            self._requests = TokenBucket(self.settings.requests_per_s)
        if self.settings.tokens_per_s is not None:
            self._tokens = TokenBucket(self.settings.tokens_per_s, burst=self.settings.tokens_per_s)
        if self._adaptive is not None:
            self._adaptive.restart_clock()

    def _estimate(self, request: Request) -> int:
        if self._tokens is None:
            return 0
        chars = sum(message.chars for message in request.messages)
        return estimate_tokens(chars) + (request.options.max_tokens or self._longest_answer)

    def _ready_at(self, tokens: int) -> float:
        return max(
            -math.inf if self._requests is None else self._requests.ready_at(1),
            -math.inf if self._tokens is None else self._tokens.ready_at(tokens),
            -math.inf if self._adaptive is None else self._adaptive.paused_until,
        )

    def begin(self, receive: Receive | None) -> _TrackedRequest:
        """Record that a request is sent."""
        with self._lock:
            if self._adaptive is not None:
                self._adaptive.sent()
            return _TrackedRequest(self._clock, self._clock.now(), receive)

    def receiver(self, tracked: _TrackedRequest, backend: object) -> Receive | None:
        """
        Return the receiver for a request.

        An adaptive limit streams always, to measure the first text.
        """
        return tracked if self._adaptive is not None and hasattr(backend, "stream") else tracked.receive

    def answered(self, tracked: _TrackedRequest, generation: Generation, estimate: int) -> None:
        """Correct the token estimate, and update the adaptive limit."""
        with self._lock:
            now = self._clock.now()
            tokens = generation.usage.output_tokens
            self._longest_answer = max(self._longest_answer, tokens)
            # Without a reported usage, the estimate stands.
            if self._tokens is not None and generation.usage.total_tokens:
                self._tokens.take(generation.usage.total_tokens - estimate, now)
            if self._adaptive is not None:
                # A single piece arrives with the end of the answer, so it does not show when the generation began.
                first_at = tracked.first_at if tracked.pieces > 1 else None
                self._adaptive.answered(sent_at=tracked.sent_at, now=now, first_at=first_at, tokens=tokens)
        self._resize()

    def refused(self, estimate: int, retry_after_s: float | None) -> None:
        """Lower the limit after a refusal, and return the tokens, which were not used."""
        with self._lock:
            now = self._clock.now()
            if self._tokens is not None:
                self._tokens.take(-estimate, now)
            if self._adaptive is not None:
                self._adaptive.refused(now=now, retry_after_s=retry_after_s)
        self._resize()

    def _resize(self) -> None:
        if self._adaptive is not None:
            self.slots.total = self._adaptive.limit

    def abandoned(self) -> None:
        """Record a request that was cancelled, or failed for a reason of its own."""
        with self._lock:
            if self._adaptive is not None:
                self._adaptive.abandoned()


def _signals_overload(error: BaseException) -> bool:
    """Return whether an error means that the backend is overloaded."""
    # 529 is the status for overload at Anthropic.
    overloaded = isinstance(error, ServerError) and error.status in {503, 529}
    return overloaded or isinstance(error, RateLimited | Timeout)


# Weak, so that a key is free again once its limiter is no longer used.
_limiters: WeakValueDictionary[Hashable, _Limiter] = WeakValueDictionary()
_limiters_lock = Lock()


def _shared_limiter(key: Hashable, settings: _Settings) -> _Limiter:
    with _limiters_lock:
        limiter = _limiters.setdefault(key, _Limiter(settings))
    if limiter.settings != settings:
        raise ValueError(f"key {short_repr(key)} is in use with other limits: {limiter.settings.given()}")
    return limiter
