"""Token usage and prices."""

import math
import sys
from collections.abc import Iterable

import attrs

from sampling._arguments import check_int, check_number
from sampling._frozen import quick

__all__ = ["NO_USAGE", "Price", "Usage"]


@quick
@attrs.frozen(repr=False)
class Usage:
    """
    Tokens used and money spent.

    Adds up with `+` and `sum()`.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    cached_input_tokens: int = 0
    """The part of the input tokens that the server read from its cache."""

    reasoning_tokens: int = 0
    """The part of the output tokens that was reasoning."""

    cache_write_tokens: int = attrs.field(default=0, kw_only=True, eq=False)
    """
    The part of the input tokens that the server wrote to its cache, where that has a price.

    Journals keep it for each attempt, but not in their totals.
    """

    def __attrs_post_init__(self) -> None:
        # Every attempt makes some. What follows the first test only finds the words for what is wrong.
        if (
            type(self.input_tokens) is type(self.output_tokens) is int
            and type(self.cost) is float
            and self.input_tokens >= 0
            and self.output_tokens >= 0
            and 0.0 <= self.cost < math.inf
            and self.cached_input_tokens == self.reasoning_tokens == self.cache_write_tokens == 0
        ):
            return
        check_int("input_tokens", self.input_tokens, least=0)
        check_int("output_tokens", self.output_tokens, least=0)
        check_number("cost", self.cost, least=0)
        # Rare, and not worth two calls for each attempt.
        if self.cached_input_tokens != 0 or self.reasoning_tokens != 0 or self.cache_write_tokens != 0:
            check_int("cached_input_tokens", self.cached_input_tokens, least=0)
            check_int("reasoning_tokens", self.reasoning_tokens, least=0)
            check_int("cache_write_tokens", self.cache_write_tokens, least=0)

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" for name, value in zip(_NAMES, self.numbers(), strict=True)]
        # The last two only where there are any: most backends report neither.
        return f"Usage({', '.join(shown if any(self.numbers()[3:]) else shown[:3])})"

    @property
    def total_tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: object) -> "Usage":
        if not isinstance(other, Usage):
            return NotImplemented
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            min(self.cost + other.cost, _MAX_COST),
            self.cached_input_tokens + other.cached_input_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
        )

    def minus(self, other: "Usage") -> "Usage":
        """Subtract another usage. Differences below 0 become 0."""
        return Usage(*[max(0, mine - its) for mine, its in zip(self.numbers(), other.numbers(), strict=True)])  # type: ignore[arg-type]

    def numbers(self) -> tuple[int, int, float, int, int]:
        """Return all fields that are compared, in the order in which `Usage` takes them."""
        return self.input_tokens, self.output_tokens, self.cost, self.cached_input_tokens, self.reasoning_tokens

    @classmethod
    def total(cls, parts: "Iterable[Usage]") -> "Usage":
        """Return the sum of many usages."""
        # Not sum(), which would create and check one Usage per part.
        parts = tuple(parts)
        if len(parts) < 2:
            return parts[0] if parts else NO_USAGE
        input_tokens, output_tokens, cost, cached, reasoning, written = 0, 0, 0.0, 0, 0, 0
        for part in parts:
            input_tokens += part.input_tokens
            output_tokens += part.output_tokens
            cost += part.cost
            cached += part.cached_input_tokens
            reasoning += part.reasoning_tokens
            written += part.cache_write_tokens
        return cls(input_tokens, output_tokens, min(cost, _MAX_COST), cached, reasoning, cache_write_tokens=written)

    def __radd__(self, other: object) -> "Usage":
        # sum() starts with 0.
        return self if other == 0 else NotImplemented


_MAX_COST = sys.float_info.max
"""Sums stay finite, because a backend may report any finite cost."""

_NAMES = tuple(field.name for field in attrs.fields(Usage) if field.eq)

NO_USAGE = Usage()
"""The usage of a backend that reports none."""


@attrs.frozen
class Price:
    """The price of a million tokens, in any currency."""

    input_per_million: float
    output_per_million: float
    cached_input_per_million: float | None = None
    """The price of input tokens that the provider read from its cache. None for no discount."""

    cache_write_per_million: float | None = None
    """The price of input tokens that the provider wrote to its cache. None for the price of other input."""

    def __attrs_post_init__(self) -> None:
        check_number("input_per_million", self.input_per_million, least=0)
        check_number("output_per_million", self.output_per_million, least=0)
        if self.cached_input_per_million is not None:
            check_number("cached_input_per_million", self.cached_input_per_million, least=0)
        if self.cache_write_per_million is not None:
            check_number("cache_write_per_million", self.cache_write_per_million, least=0)

    def of(self, usage: Usage) -> float:
        """Return the cost of these tokens."""
        cost = usage.input_tokens * self.input_per_million + usage.output_tokens * self.output_per_million
        if self.cached_input_per_million is not None:
            cached = min(usage.cached_input_tokens, usage.input_tokens)
            cost -= cached * (self.input_per_million - self.cached_input_per_million)
        if self.cache_write_per_million is not None:
            written = min(usage.cache_write_tokens, usage.input_tokens)
            cost += written * (self.cache_write_per_million - self.input_per_million)
        return cost / 1_000_000
