"""A layer that knows what tokens cost."""

import attrs

from sampling._arguments import check_instance
from sampling._engine import scope as identity
from sampling.backends.layers._layer import Layer, Metered, Receive, ask
from sampling.messages import Generation, Request
from sampling.protocols import BackendLike
from sampling.usage import Price, Usage

__all__ = ["Priced"]


class Priced(Layer):
    """
    Put a price on what a backend uses, so that `usage.cost` and `Budget(cost=…)` work with a server that tells none.

    `Priced(backend, Price(0.15, 0.60))` has the price of a million tokens, of input and of output.
    Cancelled and failed requests are priced too, by what they had used. A cost that the server reports is kept.
    """

    def __init__(self, backend: BackendLike, price: Price) -> None:
        super().__init__(backend)
        check_instance("price", price, Price, "a Price")
        self.price = price

    async def _answer(self, request: Request, receive: Receive | None) -> Generation:
        meter = Metered()
        try:
            with meter:
                generation = await ask(self.inner[0], request, receive)
        finally:
            if meter.used is not None:
                identity.report_usage(self._priced(meter.used))
        return attrs.evolve(generation, usage=self._priced(generation.usage))

    def _priced(self, usage: Usage) -> Usage:
        return usage if usage.cost else attrs.evolve(usage, cost=self.price.of(usage))

    def _settings(self) -> dict[str, object]:
        return {"price": self.price}
