"""A layer that adds the cost of tokens."""

from importlib.util import find_spec
from typing import Any

import attrs

from sampling._arguments import check_instance
from sampling._engine import scope as identity
from sampling.backends._deferral import price_factor
from sampling.backends.layers._layer import Layer, Receive, UsageMeter, call_backend, iter_backends
from sampling.errors import BadRequest, MissingExtra
from sampling.messages import Generation, Request
from sampling.protocols import BackendLike
from sampling.usage import Price, Usage

__all__ = ["Priced"]


class Priced(Layer):
    """
    A backend that adds a cost to the usage.

    `usage.cost` and `Budget(cost=…)` then work with servers that report no cost.
    `Price(0.25, 2.0, 0.025)` gives the prices of a million tokens: input, output, and input from a cache. A fourth one
    is for input that is written to a cache.
    Without a price, the price list of the package `genai-prices` is used, in US dollars. This needs the extra `prices`,
    and a model that the list knows. For a gateway or a proxy, pass the price yourself.
    Cancelled and failed requests are priced by their usage so far. A cost that the server reports is kept.
    """

    def __init__(self, backend: BackendLike, price: Price | None = None) -> None:
        super().__init__(backend)
        if price is None:
            if find_spec("genai_prices") is None:
                raise MissingExtra("Priced without a price", "genai-prices", "prices")
            inner = list(iter_backends(self.inner[0]))
            self._url = next((url for one in inner if isinstance(url := getattr(one, "base_url", None), str)), None)
            self._model = next((name for one in inner if isinstance(name := getattr(one, "model", None), str)), None)
            if self._model is not None:
                self._list_price(self._model, Usage())
        else:
            check_instance("price", price, Price, "a Price or None")
        self.price = price

    @property
    def reports_cost(self) -> bool:
        """True, also if the price is zero."""
        return True

    async def _answer(self, request: Request, receive: Receive | None) -> Generation:
        model = None
        if self.price is None:
            # Before anything is sent, because an unknown cost can't be kept within a budget.
            model = request.options.model or self._model
            self._check_listed(model)
        meter = UsageMeter()
        try:
            with meter:
                generation = await call_backend(self.inner[0], request, receive)
        finally:
            if meter.used is not None:
                identity.report_usage(self._priced(meter.used, model))
        return attrs.evolve(generation, usage=self._priced(generation.usage, model))

    def _check_listed(self, model: str | None) -> None:
        if model is None:
            raise BadRequest(
                "the price list needs the name of the model", hint="Set Options(model=…), or pass a Price to Priced."
            )
        try:
            self._list_price(model, Usage())
        except ValueError as error:
            raise BadRequest(str(error)) from None

    def _priced(self, usage: Usage, model: str | None) -> Usage:
        if usage.cost:
            return usage
        cost = self._list_price(model or "", usage) if self.price is None else self.price.of(usage)
        return attrs.evolve(usage, cost=cost * min([price_factor(one) for one in iter_backends(self.inner[0])]))

    def price_of(self, model: str | None) -> Price:
        """Return the price of a million tokens of a model, or raise ValueError if it is not known."""
        if self.price is not None:
            return self.price
        name, million = model or self._model or "", 1_000_000
        return Price(
            self._list_price(name, Usage(input_tokens=million)), self._list_price(name, Usage(output_tokens=million))
        )

    def _list_price(self, model: str, usage: Usage) -> float:
        """Return the cost by the price list, or raise a ValueError if it does not have the model."""
        import genai_prices  # noqa: PLC0415 - an extra

        cached = min(usage.cached_input_tokens, usage.input_tokens)
        counts = genai_prices.Usage(
            input_tokens=usage.input_tokens,
            cache_read_tokens=cached,
            cache_write_tokens=min(usage.cache_write_tokens, usage.input_tokens - cached),
            output_tokens=usage.output_tokens,
        )
        # The same model has other prices elsewhere, so that the address decides if the list knows it.
        for where in ({"provider_api_url": self._url}, {}):
            found: dict[str, Any] = {name: value for name, value in where.items() if value is not None}
            try:
                return float(genai_prices.calc_price(counts, model, **found).total_price)
            except LookupError:
                continue
        raise ValueError(f"no price is known for the model {model!r}. Pass a Price to Priced.")

    def _settings(self) -> dict[str, object]:
        return {} if self.price is None else {"price": self.price}
