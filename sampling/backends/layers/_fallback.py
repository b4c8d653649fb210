"""A layer that asks another backend when one gives up."""

from collections.abc import Iterable
from typing import Any, cast

import attrs

from sampling._arguments import check_items, wrong_type
from sampling._engine.scope import count_request
from sampling.backends.layers._layer import NOTHING, Delivery, Layer, Metered, Receive, ask
from sampling.errors import FatalError
from sampling.messages import Generation, Request
from sampling.protocols import BackendLike

__all__ = ["Fallback"]


class Fallback(Layer):
    """
    A backend that tries several backends in order until one succeeds.

    Which one answered is on `generation.model`. What the others had used before they failed is in the usage.
    If all fail, what the last one raised is raised, from a group of what all of them did.

    By default only a `FatalError` makes it go on: a bad key, an unknown model, an exhausted quota.
    To go on when a backend is only overloaded, after its retries: `Fallback(Retrying(a), b, on=[BackendError])`.
    """

    def __init__(
        self,
        first: BackendLike,
        *others: BackendLike,
        on: type[Exception] | Iterable[type[Exception]] = FatalError,
    ) -> None:
        """
        Line backends up.

        Args:
            first: What to ask first.

            others: What to ask then, in this order.

            on: The errors, or the error, on which to go on. All others come through at once.
        """
        super().__init__(first, *others)
        if not others:
            raise ValueError("others must not be empty: there is nothing to fall back on")
        self.on = _error_types(on)

    async def _answer(self, request: Request, receive: Receive | None) -> Generation:
        delivery = None if receive is None else Delivery(receive)
        failures: list[Exception] = []
        spent = NOTHING
        for backend in self.inner:
            if failures:
                count_request()
            meter = Metered(spent)
            try:
                with meter:
                    generation = await ask(backend, request, delivery)
            except self.on as error:
                failures.append(error)
                if delivery is not None and delivery.begun:
                    break  # text went out that can't be taken back
                spent = meter.used or NOTHING
            else:
                return attrs.evolve(
                    generation, model=generation.model or _name_of(backend), usage=spent + generation.usage
                )
        raise _all_in_one(failures)

    def _settings(self) -> dict[str, object]:
        return {} if self.on == (FatalError,) else {"on": [kind.__name__ for kind in self.on]}


def _error_types(on: Any) -> tuple[type[Exception], ...]:
    kinds: tuple[Any, ...] = (on,)
    if not isinstance(on, type):
        kinds = check_items("on", on, "an exception type, or several in a list")
    for kind in kinds:
        # Not a BaseException: going on after a cancellation would outlive whoever asked.
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise wrong_type("on", cast("object", kind), "one or more types of Exception, such as [FatalError]")
    return kinds


def _all_in_one(failures: list[Exception]) -> Exception:
    """Return the last failure, and make all of them its cause."""
    last = failures[-1]
    if len(failures) > 1:
        group = ExceptionGroup(f"all {len(failures)} backends failed", failures)
        # The failure's own cause stays in the chain, one link further up.
        group.__cause__ = last.__cause__
        last.__cause__ = group
    return last


def _name_of(backend: object) -> str:
    model = getattr(backend, "model", None)
    return model if isinstance(model, str) and model else getattr(backend, "__qualname__", type(backend).__name__)
