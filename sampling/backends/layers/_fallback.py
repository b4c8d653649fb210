"""A layer that falls back on other backends."""

from collections.abc import Iterable
from typing import Any, cast

import attrs

from sampling._arguments import check_items, wrong_type
from sampling._engine.scope import count_request
from sampling.backends.layers._layer import Layer, Receive, TrackedReceiver, UsageMeter, call_backend
from sampling.errors import FatalError
from sampling.messages import Generation, Request
from sampling.protocols import BackendLike
from sampling.usage import NO_USAGE

__all__ = ["Fallback"]


class Fallback(Layer):
    """
    A backend that tries several backends in order until one succeeds.

    `generation.model` tells which backend answered. The usage includes that of the backends that failed before.
    If all fail, the error of the last one is raised, with a group of all errors as its cause.

    By default only a `FatalError` leads to the next backend: a bad key, an unknown model, an exhausted quota.
    To fall back after failed retries as well, use `Fallback(Retrying(a), b, on=[BackendError])`.
    """

    def __init__(
        self,
        first: BackendLike,
        *others: BackendLike,
        on: type[Exception] | Iterable[type[Exception]] = FatalError,
    ) -> None:
        """
        Wrap several backends.

        Args:
            first: The backend to try first.

            others: The backends to try next, in this order.

            on: The error type, or types, that lead to the next backend. Other errors are raised at once.
        """
        super().__init__(first, *others)
        if not others:
            raise ValueError("others must not be empty: pass at least one backend to fall back on")
        self.on: tuple[type[Exception], ...] = _error_types(on)

    async def _answer(self, request: Request, receive: Receive | None) -> Generation:
        receiver = None if receive is None else TrackedReceiver(receive)
        failures: list[Exception] = []
        spent = NO_USAGE
        for backend in self.inner:
            if failures:
                count_request()
            meter = UsageMeter(spent)
            try:
                with meter:
                    generation = await call_backend(backend, request, receiver)
            except self.on as error:
                failures.append(error)
                if receiver is not None and receiver.committed:
                    break  # the caller has seen text that can't be taken back
                if receiver is not None:
                    receiver.restart()
                spent = meter.used or NO_USAGE
            else:
                return attrs.evolve(
                    generation, model=generation.model or _model_name(backend), usage=spent + generation.usage
                )
        raise _combine(failures)

    def _settings(self) -> dict[str, object]:
        return {} if self.on == (FatalError,) else {"on": [kind.__name__ for kind in self.on]}


def _error_types(on: Any) -> tuple[type[Exception], ...]:
    kinds: tuple[Any, ...] = (on,)
    if not isinstance(on, type):
        kinds = check_items("on", on, "an exception type, or several in a list")
    for kind in kinds:
        # No BaseException: a request sent after a cancellation would outlive its caller.
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise wrong_type("on", cast("object", kind), "one or more types of Exception, such as [FatalError]")
    return kinds


def _combine(failures: list[Exception]) -> Exception:
    """Return the last failure, with a group of all failures as its cause."""
    last = failures[-1]
    if len(failures) > 1:
        group = ExceptionGroup(f"all {len(failures)} backends failed", failures)
        # Keep the failure's own cause in the chain.
        group.__cause__ = last.__cause__
        last.__cause__ = group
    return last


def _model_name(backend: object) -> str:
    model = getattr(backend, "model", None)
    return model if isinstance(model, str) and model else getattr(backend, "__qualname__", type(backend).__name__)
