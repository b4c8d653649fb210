"""The parameters of a model server."""

import random
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from sampling._arguments import check_int, check_items, check_number
from sampling.backends.simulated import SimulatedBackend
from sampling.load.model._schema import check_schema

__all__ = ["ServerModel"]


def _lengths(value: object) -> tuple[int, ...]:
    items = (value,) if isinstance(value, int) else check_items("output_tokens", value, "an int or several")
    if not items:
        raise ValueError("output_tokens must not be empty")
    return tuple(check_int("output_tokens", item, least=1) for item in items)


@attrs.frozen
class _Drawn:
    """Draws one of several lengths with equal probability."""

    lengths: tuple[int, ...]

    def __call__(self, rng: random.Random) -> int:
        return rng.choice(self.lengths)

    def __repr__(self) -> str:
        return f"one of {len(self.lengths)} lengths"


@attrs.frozen(kw_only=True)
class ServerModel:
    """
    A model of a server.

    It has a number of slots, a time to first token and a time per further token.
    Requests wait for a slot in the order of arrival. Requests in slots slow each other down: with `n` of them, the
    time to first token is `time_to_first_token_s * (1 + first_token_slowdown * (n - 1))` at that moment. The time per
    token has the same formula, with `token_slowdown`.
    """

    slots: int
    time_to_first_token_s: float
    """Time from getting a slot to the first token, for a request alone on the server."""

    time_per_token_s: float
    """Time per token after the first, for a request alone on the server."""

    first_token_slowdown: float = 0.0
    """Relative growth of the time to first token per further request in a slot."""

    token_slowdown: float = 0.0
    """Relative growth of the time per token per further request in a slot."""

    jitter: float = 0.0
    """Random variation of the pace of requests: the standard deviation of its logarithm."""

    output_tokens: tuple[int, ...] = attrs.field(default=(64,), converter=_lengths)
    """Possible lengths of an answer, with equal probability."""

    input_tokens: int = 64
    """Average length of a prompt."""

    pass_probability: float = 1.0
    """Probability that one attempt is valid."""

    schema: ClassVar[str] = "sampling.server/1"

    def __attrs_post_init__(self) -> None:
        check_int("slots", self.slots, least=1)
        check_int("input_tokens", self.input_tokens, least=0)
        for name in ("time_to_first_token_s", "time_per_token_s", "first_token_slowdown", "token_slowdown", "jitter"):
            check_number(name, getattr(self, name), least=0)
        if check_number("pass_probability", self.pass_probability, least=0) > 1:
            raise ValueError(f"pass_probability must be <= 1, got {self.pass_probability}")

    @property
    def mean_output_tokens(self) -> float:
        """Average length of an answer."""
        return sum(self.output_tokens) / len(self.output_tokens)

    def service_s(self, busy: int = 1) -> float:
        """
        Return the time of an answer of average length.

        The number of busy slots is constant.
        """
        first_s = self.time_to_first_token_s * (1 + self.first_token_slowdown * (busy - 1))
        token_s = self.time_per_token_s * (1 + self.token_slowdown * (busy - 1))
        return first_s + token_s * (self.mean_output_tokens - 1)

    @property
    def saturation_rate(self) -> float:
        """The rate that keeps all slots busy. A higher rate grows the queue without limit."""
        service_s = self.service_s(self.slots)
        return self.slots / service_s if service_s else float("inf")

    def backend(self, *, seed: int = 0) -> SimulatedBackend:
        """Return a simulated backend with these parameters. It runs in virtual or real time."""
        return SimulatedBackend(
            seed=seed,
            slots=self.slots,
            time_to_first_token_s=self.time_to_first_token_s,
            time_per_token_s=self.time_per_token_s,
            first_token_slowdown=self.first_token_slowdown,
            token_slowdown=self.token_slowdown,
            jitter=self.jitter,
            output_tokens=_Drawn(self.output_tokens),
            tokens_per_piece=16,
            pass_probability=self.pass_probability,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the model as a JSON-compatible dictionary."""
        return {"schema": self.schema, **attrs.asdict(self), "output_tokens": list(self.output_tokens)}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "ServerModel":
        """Rebuild a model from the result of `to_dict`."""
        check_schema(found, cls.schema, "server model")
        return cls(**{field.name: found[field.name] for field in attrs.fields(cls)})

    def __str__(self) -> str:
        return (
            f"{self.slots} slots, first token after {self.time_to_first_token_s * 1000:.3g} ms "
            f"(+{self.first_token_slowdown:.0%} for each other request), "
            f"{self.time_per_token_s * 1000:.3g} ms per token (+{self.token_slowdown:.0%}), "
            f"{self.mean_output_tokens:.3g} tokens, {self.pass_probability:.3g} pass"
        )
