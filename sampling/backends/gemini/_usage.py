"""Read the token counts of a response of Gemini."""

from collections.abc import Mapping
from typing import Any

from sampling.backends.http._fields import token_count
from sampling.usage import Usage

__all__ = ["read_usage"]


def read_usage(fields: Mapping[str, Any]) -> Usage | None:
    """
    Return the usage in a `usageMetadata` object.

    Gemini counts thoughts and the results of its own tools separately. Return None if a count is missing or
    implausible, so that an estimate is used instead.
    """
    names = ("promptTokenCount", "toolUsePromptTokenCount", "candidatesTokenCount", "thoughtsTokenCount")
    given = [fields.get(name) for name in (*names, "cachedContentTokenCount")]
    counts = [token_count(0 if value is None else value) for value in given]
    if given[0] is None or None in counts:
        return None
    prompt, tools, answer, thoughts, cached = [count or 0 for count in counts]
    return Usage(
        prompt + tools, answer + thoughts, cached_input_tokens=min(cached, prompt + tools), reasoning_tokens=thoughts
    )
