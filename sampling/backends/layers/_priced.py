"""A layer that adds the cost of tokens."""

import attrs

from sampling._arguments import check_instance
from sampling._engine import scope as identity
from sampling.backends.layers._layer import Layer, Receive, UsageMeter, call_backend
from sampling.messages import Generation, Request
from sampling.protocols import BackendLike
from sampling.usage import Price, Usage

__all__ = ["Priced"]


class Priced(Layer):
    """
    A backend that adds a cost to the usage.

    `usage.cost` and `Budget(cost=…)` then work with servers that report no cost.
    `Price(0.15, 0.60)` gives the prices of a million input tokens and of a million output tokens.
    Cancelled and failed requests are priced by their usage so far. A cost that the server reports is kept.
    """

    def __init__(self, backend: BackendLike, price: Price) -> None:
        super().__init__(backend)
        check_instance("price", price, Price, "a Price")
        self.price = price

    async def _answer(self, request: Request, receive: Receive | None) -> Generation:
        meter = UsageMeter()
        try:
            with meter:
                generation = await call_backend(self.inner[0], request, receive)
        finally:
            if meter.used is not None:
                identity.report_usage(self._priced(meter.used))
        return attrs.evolve(generation, usage=self._priced(generation.usage))

    def _priced(self, usage: Usage) -> Usage:
        return usage if usage.cost else attrs.evolve(usage, cost=self.price.of(usage))

    def _settings(self) -> dict[str, object]:
        return {"price": self.price}
