"""Token usage and prices."""

from collections.abc import Iterable

import attrs

from sampling._arguments import check_int, check_number

__all__ = ["NO_USAGE", "Price", "Usage"]


@attrs.frozen
class Usage:
    """
    Tokens used and money spent.

    Adds up with `+` and `sum()`.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0

    def __attrs_post_init__(self) -> None:
        check_int("input_tokens", self.input_tokens, least=0)
        check_int("output_tokens", self.output_tokens, least=0)
        check_number("cost", self.cost, least=0)

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
            self.cost + other.cost,
        )

    @classmethod
    def total(cls, parts: "Iterable[Usage]") -> "Usage":
        """Return the sum of many usages."""
        # Not sum(), which would create and check one Usage per part.
        parts = tuple(parts)
        if len(parts) < 2:
            return parts[0] if parts else NO_USAGE
        input_tokens, output_tokens, cost = 0, 0, 0.0
        for part in parts:
            input_tokens += part.input_tokens
            output_tokens += part.output_tokens
            cost += part.cost
        return cls(input_tokens, output_tokens, cost)

    def __radd__(self, other: object) -> "Usage":
        # sum() starts with 0.
        return self if other == 0 else NotImplemented


NO_USAGE = Usage()
"""The usage of a backend that reports none."""


@attrs.frozen
class Price:
    """The price of a million tokens, in any currency."""

    input_per_million: float
    output_per_million: float

    def __attrs_post_init__(self) -> None:
        check_number("input_per_million", self.input_per_million, least=0)
        check_number("output_per_million", self.output_per_million, least=0)

    def of(self, usage: Usage) -> float:
        """Return the cost of these tokens."""
        return (usage.input_tokens * self.input_per_million + usage.output_tokens * self.output_per_million) / 1_000_000
