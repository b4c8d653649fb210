"""A layer that tries again."""

import math
import random
from contextvars import ContextVar
from functools import partial

import anyio
import attrs
import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt

from sampling._arguments import check_int, check_number
from sampling._engine.scope import count_request
from sampling.backends.layers._layer import NOTHING, Delivery, Layer, Metered, Receive, ask, everything_in
from sampling.errors import TransientError
from sampling.messages import Generation, Request
from sampling.protocols import BackendLike
from sampling.usage import Usage

__all__ = ["Retrying"]

log = structlog.get_logger("sampling")

_inside: ContextVar[bool] = ContextVar("sampling_retrying", default=False)


class Retrying(Layer):
    """
    Try again when a backend fails with a `TransientError`, and only then.

    The wait is what the backend asked for (`retry_after_s`, to the letter, but never more than `max_wait_s`);
    where it did not ask, it is drawn between nothing and `backoff_s`, twice that the next time, and so on.
    Waiting takes time of the call's deadline, but no attempt of its `loop_budget`.
    Every try counts as a request: `slice.requests` shows how many it took, and a `Budget(requests=…)` limits them.

    Retries have one owner. A `Retrying` around another is refused; should two meet all the same,
    hidden in a function of yours, only the outer one retries. So no stack of layers ever makes more than `attempts`.

    Put it around `Limited`, not into it: then a request that waits for its next try does not hold up others.

    Text that was streamed can't be taken back, so a stream that breaks after its first piece is not tried again.
    """

    def __init__(
        self,
        backend: BackendLike,
        *,
        attempts: int = 4,
        max_wait_s: float = 120.0,
        backoff_s: float = 0.5,
        seed: int | None = None,
    ) -> None:
        """
        Wrap a backend.

        Args:
            backend: What to ask.

            attempts: How often a request is sent at most, the first time included.

            max_wait_s: The longest that one wait may be.

            backoff_s: The longest that the first wait may be where the backend did not say how long; it doubles.

            seed: Makes the waits that are drawn repeatable.
        """
        super().__init__(backend)
        for inner in everything_in(backend):
            if isinstance(inner, Retrying):
                raise ValueError(  # noqa: TRY004 - a second one is of the right type, and still one too many
                    f"backend must not retry already, got {inner!r}: retries would multiply, so keep one of the two"
                )
        self.attempts = check_int("attempts", attempts, least=1)
        self.max_wait_s = check_number("max_wait_s", max_wait_s, least=0)
        self.backoff_s = check_number("backoff_s", backoff_s, least=0)
        self.seed = None if seed is None else check_int("seed", seed)

    async def _answer(self, request: Request, receive: Receive | None) -> Generation:
        if _inside.get():
            return await ask(self.inner[0], request, receive)
        token = _inside.set(True)
        try:
            return await self._try(request, receive)
        finally:
            _inside.reset(token)

    async def _try(self, request: Request, receive: Receive | None) -> Generation:
        tries = _Tries(self.inner[0], request, None if receive is None else Delivery(receive))
        try:
            return await tries.next()
        except TransientError as error:
            # Only now, for nearly all requests go well at once, and setting this up costs more than an attempt.
            tries.failure = error
        return await self._try_again(tries)

    async def _try_again(self, tries: "_Tries") -> Generation:
        enough = stop_after_attempt(self.attempts)
        # One for each call: shared ones mix up their counts.
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(TransientError),
            wait=partial(self._wait_s, tries.request),
            stop=lambda state: enough(state) or tries.delivered,
            sleep=anyio.sleep,
            before_sleep=_log_retry,
            reraise=True,
        )
        try:
            answer: Generation = await retrying(tries.next)
        except TransientError as error:
            error.add_note("tried once" if tries.count == 1 else f"tried {tries.count} times")
            raise
        return answer

    def _wait_s(self, request: Request, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked_s = getattr(error, "retry_after_s", None)
        if isinstance(asked_s, int | float) and asked_s >= 0:
            return min(asked_s, self.max_wait_s)
        longest_s = min(self.max_wait_s, math.ldexp(self.backoff_s, min(state.attempt_number - 1, 64)))
        return self._rng(request, state.attempt_number).uniform(0, longest_s)

    def _rng(self, request: Request, tries: int) -> random.Random:
        # By subsample and attempt, so that a draw does not depend on who comes first.
        seed = None if self.seed is None else f"{self.seed} {request.subsample} {request.attempt} {tries}"
        return random.Random(seed)  # noqa: S311 - jitter is no secret

    def _settings(self) -> dict[str, object]:
        return {"attempts": self.attempts, "max_wait_s": self.max_wait_s}


@attrs.define
class _Tries:
    """All tries of one request. What the failed ones used is added to what the last one did."""

    _backend: BackendLike
    request: Request
    _delivery: Delivery | None
    count: int = 0
    failure: TransientError | None = None
    """A failure that was met already, for the next try to begin with."""

    _spent: Usage = NOTHING

    @property
    def delivered(self) -> bool:
        """True once text was passed on that can't be taken back."""
        return self._delivery is not None and self._delivery.begun

    async def next(self) -> Generation:
        """Try once more."""
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        if self.count:
            count_request()
        self.count += 1
        meter = Metered(self._spent)
        try:
            with meter:
                generation = await ask(self._backend, self.request, self._delivery)
        except TransientError:
            self._spent = meter.used or NOTHING
            raise
        if self._spent is not NOTHING:
            generation = attrs.evolve(generation, usage=self._spent + generation.usage)
        return generation


def _log_retry(state: RetryCallState) -> None:
    # Only the type: a message may quote the prompt.
    error = state.outcome.exception() if state.outcome is not None else None
    log.info(
        "request_retried", tries=state.attempt_number, wait_s=state.upcoming_sleep, error_type=type(error).__name__
    )
