"""The flags of generated prompts and of conversations."""

from collections.abc import Mapping
from typing import Annotated

import typer

from sampling._arguments import check_int, check_number
from sampling.load import Lengths, RandomPrompts

__all__ = [
    "Prefixes",
    "PromptTokens",
    "PromptTokensMax",
    "PromptTokensMin",
    "PromptTokensStdev",
    "SharedPrefixTokens",
    "Turns",
    "parse_prompts",
]

_MOST_TOKENS = 10_000_000

PromptTokens = Annotated[
    int | None,
    typer.Option(help="Generate prompts of random words instead of questions: their mean length, with the prefix."),
]
PromptTokensStdev = Annotated[
    float | None, typer.Option(help="Standard deviation of the lengths. Without it all prompts are as long.")
]
PromptTokensMin = Annotated[int | None, typer.Option(help="The shortest generated prompt. Default: 1.")]
PromptTokensMax = Annotated[int | None, typer.Option(help="The longest generated prompt. Default: no limit.")]
SharedPrefixTokens = Annotated[
    int | None, typer.Option(help="How many tokens at the beginning generated prompts share, like a system prompt.")
]
Prefixes = Annotated[
    int | None, typer.Option(help="Number of different prefixes, with --shared-prefix-tokens. Default: 1.")
]
Turns = Annotated[
    int | None,
    typer.Option(help="With users: each goes on in its own conversation, and begins a new one after so many requests."),
]


def parse_prompts(
    tokens: int | None,
    *,
    stdev: float | None,
    least: int | None,
    most: int | None,
    shared_prefix_tokens: int | None,
    prefixes: int | None,
) -> RandomPrompts | None:
    """Return the prompts of `--prompt-tokens` and the flags for it, or None without it."""
    shape = {"--prompt-tokens-min": least, "--prompt-tokens-max": most}
    shared = {"--shared-prefix-tokens": shared_prefix_tokens, "--prefixes": prefixes}
    if tokens is None:
        _refuse({"--prompt-tokens-stdev": stdev, **shape, **shared}, "--prompt-tokens, the mean length")
        return None
    check_int("--prompt-tokens", tokens, least=1, most=_MOST_TOKENS)
    if stdev is None:
        _refuse(shape, "--prompt-tokens-stdev: without it all prompts have the same length")
    if shared_prefix_tokens is None:
        _refuse({"--prefixes": prefixes}, "--shared-prefix-tokens")
    lowest = 1 if least is None else check_int("--prompt-tokens-min", least, least=1, most=_MOST_TOKENS)
    if most is not None:
        check_int("--prompt-tokens-max", most, least=lowest, most=_MOST_TOKENS)
    if not lowest <= tokens <= (_MOST_TOKENS if most is None else most):
        raise ValueError(
            "--prompt-tokens is the mean, so it must be between --prompt-tokens-min and --prompt-tokens-max, "
            f"got {tokens}"
        )
    prefix = check_int("--shared-prefix-tokens", shared_prefix_tokens or 0, least=0)
    if prefix >= tokens:
        raise ValueError(
            "--shared-prefix-tokens must be less than --prompt-tokens, which counts the prefix too, "
            f"got {prefix} and {tokens}"
        )
    spread = check_number("--prompt-tokens-stdev", stdev or 0.0, least=0, most=_MOST_TOKENS)
    return RandomPrompts(
        Lengths(tokens, stdev=spread, least=lowest, most=most),
        shared_prefix_tokens=prefix,
        prefixes=check_int("--prefixes", 1 if prefixes is None else prefixes, least=1),
    )


def _refuse(flags: Mapping[str, object], needed: str) -> None:
    given = [name for name, value in flags.items() if value is not None]
    if given:
        raise ValueError(f"{', '.join(given)} need{'s' if len(given) == 1 else ''} {needed}")
