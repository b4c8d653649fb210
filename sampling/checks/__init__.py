"""
Ready-made requirements.

    from sampling import checks
    await strategy.sample("…", ctx, backend, [checks.length(max_words=50), checks.judge("is polite")])

Each function returns a `Requirement`. The reason of a failure names the place, the problem and the fix,
in words for the model. Some have a partial check too: it stops a stream as soon as the text can no longer pass.
"""

from sampling._text import unfenced
from sampling._text.similarity import rouge_l
from sampling.checks.code import python_imports, python_parses, python_runs
from sampling.checks.combined import all_of, any_of, not_, weighted
from sampling.checks.judged import grounded, judge
from sampling.checks.markup import markdown
from sampling.checks.patterns import matches
from sampling.checks.structured import json, json_schema, model
from sampling.checks.text import length, number, one_of, similar_to
from sampling.checks.tools import tool_calls

__all__ = [
    "all_of",
    "any_of",
    "grounded",
    "json",
    "json_schema",
    "judge",
    "length",
    "markdown",
    "matches",
    "model",
    "not_",
    "number",
    "one_of",
    "python_imports",
    "python_parses",
    "python_runs",
    "rouge_l",
    "similar_to",
    "tool_calls",
    "unfenced",
    "weighted",
]
