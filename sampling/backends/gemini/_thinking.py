"""Map `Options.reasoning_effort` to the thinking of Gemini's models."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from sampling.backends.gemini._contents import is_newer_than_2
from sampling.options import ReasoningEffort

__all__ = ["can_think", "thinking_config"]

Json: TypeAlias = dict[str, Any]

# Google's own translation: https://ai.google.dev/gemini-api/docs/openai#thinking
_BUDGETS: Mapping[ReasoningEffort, int] = {"none": 0, "minimal": 1_024, "low": 1_024, "medium": 8_192, "high": 24_576}
_LEVELS: Mapping[ReasoningEffort, str] = {"minimal": "MINIMAL", "low": "LOW", "medium": "MEDIUM", "high": "HIGH"}


def can_think(model: str, effort: ReasoningEffort) -> bool:
    """Return whether the API has a setting for this effort. From Gemini 3 on, thinking can't be turned off."""
    return effort in (_LEVELS if is_newer_than_2(model) else _BUDGETS)


def thinking_config(model: str, effort: ReasoningEffort | None, *, include_thoughts: bool) -> Json | None:
    """Return the `thinkingConfig` for a model, or None to leave it to the model."""
    config: Json = {}
    if effort is not None and is_newer_than_2(model):
        config["thinkingLevel"] = _LEVELS[effort]
    elif effort is not None:
        config["thinkingBudget"] = _BUDGETS[effort]
    if include_thoughts:
        config["includeThoughts"] = True
    return config or None
