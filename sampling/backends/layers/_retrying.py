"""A layer that retries transient errors."""

import math
import random
from contextvars import ContextVar
from functools import partial

import anyio
import attrs
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt

from sampling._arguments import check_int, check_number
from sampling._engine.scope import count_request
from sampling._log import Logger
from sampling.backends.layers._layer import (
    Layer,
    Receive,
    TrackedReceiver,
    UsageMeter,
    call_backend,
    iter_backends,
)
from sampling.errors import TransientError
from sampling.messages import Generation, Request
from sampling.protocols import BackendLike
from sampling.usage import NO_USAGE, Usage

__all__ = ["Retrying"]

log = Logger()

_inside: ContextVar[bool] = ContextVar("sampling_retrying", default=False)
"""True inside of a `Retrying`, so that one hidden further inside does not retry too."""


class Retrying(Layer):
    """
    A backend that retries after a `TransientError`.

    Other errors are raised at once. The wait before a retry is the `retry_after_s` of the error, exactly,
    but at most `max_wait_s`. Without it, the wait is drawn between 0 and `backoff_s`, and this bound doubles each time.
    Waiting counts towards the deadline of the call, but uses no attempt of its `loop_budget`.
    Every try counts as a request: `slice.requests` shows the number, and `Budget(requests=…)` limits it.

    Retries of nested layers would multiply, so a `Retrying` around another is a `ValueError`.
    If your own function hides the inner one, only the outer one retries.
    A request of one attempt is therefore sent at most `attempts` times, however layers are stacked.
    The next attempt of the call starts again, so the depth of the call multiplies. `Budget(requests=…)` limits both.

    Put it around `Limited`, not inside, so that a request that waits for its next try holds no slot.

    A stream that breaks after its first piece is retried if its receiver can take text back, as in calls of a strategy:
    there, the text starts over. A receiver of your own gets the error.
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
            backend: The backend to wrap.

            attempts: The maximum number of tries per request, including the first.

            max_wait_s: The upper bound of a single wait.

            backoff_s: The upper bound of the first wait if the error gives none. It doubles with every retry.

            seed: Makes the random waits repeatable.
        """
        super().__init__(backend)
        for inner in iter_backends(backend):
            if isinstance(inner, Retrying):
                raise ValueError(  # noqa: TRY004 - a second one is of the right type, and still one too many
                    f"backend must not retry already, got {inner!r}: retries would multiply, so keep one of the two"
                )
        self.attempts: int = check_int("attempts", attempts, least=1)
        self.max_wait_s: float = check_number("max_wait_s", max_wait_s, least=0)
        self.backoff_s: float = check_number("backoff_s", backoff_s, least=0)
        self.seed: int | None = None if seed is None else check_int("seed", seed)

    async def _answer(self, request: Request, receive: Receive | None) -> Generation:
        if _inside.get():
            return await call_backend(self.inner[0], request, receive)
        token = _inside.set(True)
        try:
            return await self._try(request, receive)
        finally:
            _inside.reset(token)

    async def _try(self, request: Request, receive: Receive | None) -> Generation:
        tries = _Tries(self.inner[0], request, None if receive is None else TrackedReceiver(receive))
        try:
            return await tries.next()
        except TransientError as error:
            # tenacity is set up only after a failure: that costs more than a try, and nearly all first tries succeed.
            tries.failure = error
        return await self._retry(tries)

    async def _retry(self, tries: "_Tries") -> Generation:
        attempts_used = stop_after_attempt(self.attempts)
        # One per request: a shared `AsyncRetrying` mixes up the counts of concurrent requests.
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(TransientError),
            wait=partial(self._wait_s, tries.request),
            stop=lambda state: attempts_used(state) or tries.delivered,
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
        # `ldexp` with a bounded exponent can't overflow, however many attempts there are.
        longest_s = min(self.max_wait_s, math.ldexp(self.backoff_s, min(state.attempt_number - 1, 64)))
        return self._rng(request, state.attempt_number).uniform(0, longest_s)

    def _rng(self, request: Request, tries: int) -> random.Random:
        # Seeded by subsample and attempt, so that a wait does not depend on the order of requests.
        seed = None if self.seed is None else f"{self.seed} {request.subsample} {request.attempt} {tries}"
        return random.Random(seed)  # noqa: S311 - jitter is no secret

    def _settings(self) -> dict[str, object]:
        return {"attempts": self.attempts, "max_wait_s": self.max_wait_s}


@attrs.define
class _Tries:
    """
    All tries of one request.

    The usage of the failed ones is added to that of the last.
    """

    _backend: BackendLike
    request: Request
    _receiver: TrackedReceiver | None
    count: int = 0
    failure: TransientError | None = None
    """The failure of the first try, which `next` raises once so that tenacity counts it."""

    _spent: Usage = NO_USAGE

    @property
    def delivered(self) -> bool:
        """True once text was passed on that can't be taken back."""
        return self._receiver is not None and self._receiver.committed

    async def next(self) -> Generation:
        """Try once more."""
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        if self.count:
            count_request()
            if self._receiver is not None:
                self._receiver.restart()
        self.count += 1
        meter = UsageMeter(self._spent)
        try:
            with meter:
                generation = await call_backend(self._backend, self.request, self._receiver)
        except TransientError:
            self._spent = meter.used or NO_USAGE
            raise
        if self._spent is not NO_USAGE:
            generation = attrs.evolve(generation, usage=self._spent + generation.usage)
        return generation


def _log_retry(state: RetryCallState) -> None:
    # Only the type, because a message may quote the prompt.
    error = state.outcome.exception() if state.outcome is not None else None
    log.info(
        "request_retried", tries=state.attempt_number, wait_s=state.upcoming_sleep, error_type=type(error).__name__
    )
