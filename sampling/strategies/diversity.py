"""Make the subsamples of a call differ, so that breadth explores instead of repeating itself."""

from collections.abc import Sequence
from typing import TypeVar

import attrs

from sampling._arguments import check_int, check_items, check_number, check_str
from sampling.messages import Attempt, Context, Message, Options

__all__ = ["Diverse"]

T = TypeVar("T")

_STRIDE = 1_000_003
_SEEDS = 2**31


@attrs.frozen
class Diverse:
    """
    A variation for any strategy: `RejectionSamplingStrategy(variation=Diverse(temperatures=(0.2, 0.7, 1.0)), …)`.

    Subsample `s` gets item `s` of each sequence, and each starts over when it is used up:
    what a subsample gets depends on its number, and on nothing else. What is not given stays as the caller has it.
    The caller's options are never changed: these are put over them.
    """

    temperatures: Sequence[float] = attrs.field(default=(), kw_only=True)
    models: Sequence[str] = attrs.field(default=(), kw_only=True)
    seeds: Sequence[int] = attrs.field(default=(), kw_only=True)
    """A further attempt in the same subsample gets a seed of its own: with the same one, it would repeat the answer."""

    prompts: Sequence[str] = attrs.field(default=(), kw_only=True)
    """System messages, one for each subsample; an empty one adds none."""

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
        """Return what is tried where `plan` is due. Varying what was varied before changes nothing."""
        own = Options(
            temperature=_turn(self.temperatures, subsample),
            model=_turn(self.models, subsample),
            seed=self._seed(subsample, attempt),
        )
        options = own if plan.options is None else plan.options.overlaid(own)
        return Attempt(plan.action, _prompted(plan.context, _turn(self.prompts, subsample)), options)

    def _seed(self, subsample: int, attempt: int) -> int | None:
        seed = _turn(self.seeds, subsample)
        return seed if seed is None or not attempt else (seed + attempt * _STRIDE) % _SEEDS


Item = TypeVar("Item")


def _turn(items: Sequence[Item], subsample: int) -> Item | None:
    return items[subsample % len(items)] if items else None


def _prompted(context: Context, prompt: str | None) -> Context:
    """Put the prompt at the front, once: into the system message that is there, or as one of its own."""
    if not prompt:
        return context
    messages = context.messages
    if not messages or messages[0].role != "system":
        return Context([Message("system", prompt), *messages])
    there = messages[0].content
    if there == prompt or there.endswith(f"\n\n{prompt}"):
        return context
    return Context([Message("system", f"{there}\n\n{prompt}"), *messages[1:]])
