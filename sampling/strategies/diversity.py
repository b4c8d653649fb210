"""Vary options and prompts by subsample, so that answers differ."""

from collections.abc import Sequence
from typing import TypeVar

import attrs

from sampling._arguments import check_int, check_items, check_number, check_str
from sampling.messages import Attempt, Context, Message, Options
from sampling.parts import Text

__all__ = ["Diverse"]

T = TypeVar("T")

_STRIDE = 1_000_003
"""A large prime, so that seeds of later attempts do not meet the seeds of other subsamples, such as 0, 1, 2."""

_SEEDS = 2**31
"""Keeps derived seeds within a signed 32-bit integer."""


@attrs.frozen
class Diverse:
    """
    A variation of options and prompts by subsample.

    Pass it as `variation`: `RejectionSamplingStrategy(variation=Diverse(temperatures=(0.2, 0.7, 1.0)), …)`.
    Subsample `s` gets item `s` of each sequence, and each sequence wraps around.
    An empty sequence keeps the caller's value. The caller's options object is never changed.
    """

    temperatures: Sequence[float] = attrs.field(default=(), kw_only=True)
    models: Sequence[str] = attrs.field(default=(), kw_only=True)
    seeds: Sequence[int] = attrs.field(default=(), kw_only=True)
    """Later attempts of a subsample get seeds derived from these, because the same seed would repeat the answer."""

    prompts: Sequence[str] = attrs.field(default=(), kw_only=True)
    """
    System messages, one for each subsample. An empty one adds nothing.

    Each goes before the conversation, or is appended to its system message.
    """

    def __attrs_post_init__(self) -> None:
        for temperature in check_items("temperatures", self.temperatures, "a sequence of numbers, such as (0.2, 1.0)"):
            check_number("an item of temperatures", temperature, least=0)
        for model in check_items("models", self.models, "a sequence of str"):
            check_str("an item of models", model, empty=False)
        for seed in check_items("seeds", self.seeds, "a sequence of int, such as range(8)"):
            check_int("an item of seeds", seed)
        for prompt in check_items("prompts", self.prompts, "a sequence of str"):
            check_str("an item of prompts", prompt)

    def __call__(self, plan: Attempt[T], subsample: int, attempt: int) -> Attempt[T]:
        """
        Return the varied attempt.

        Applying it twice has the same effect as applying it once.
        """
        own = Options(
            temperature=_item_for(self.temperatures, subsample),
            model=_item_for(self.models, subsample),
            seed=self._seed(subsample, attempt),
        )
        options = own if plan.options is None else plan.options.overlaid(own)
        return Attempt(plan.action, _with_system_prompt(plan.context, _item_for(self.prompts, subsample)), options)

    def _seed(self, subsample: int, attempt: int) -> int | None:
        seed = _item_for(self.seeds, subsample)
        return seed if seed is None or not attempt else (seed + attempt * _STRIDE) % _SEEDS


Item = TypeVar("Item")


def _item_for(items: Sequence[Item], subsample: int) -> Item | None:
    return items[subsample % len(items)] if items else None


def _with_system_prompt(context: Context, prompt: str | None) -> Context:
    """
    Append the prompt to the system message, or add one.

    Do nothing if it is there already: a repair starts from a context that was varied before.
    """
    if not prompt:
        return context
    messages = context.messages
    if not messages or messages[0].role != "system":
        return Context([Message("system", prompt), *messages])
    existing = messages[0]
    if existing.text == prompt or existing.text.endswith(f"\n\n{prompt}"):
        return context
    whole = existing.content
    added = f"{whole}\n\n{prompt}" if isinstance(whole, str) else [*whole, Text(f"\n\n{prompt}")]
    return Context([Message("system", added), *messages[1:]])
