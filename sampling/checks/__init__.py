"""
Requirements that are ready made.

    from sampling import checks
    await strategy.sample("…", ctx, backend, [checks.length(max_words=50), checks.judge("is polite")])

Each of these returns a `Requirement`. When it fails, it says where, what is wrong and what would be right,
in words that a repair can pass on to the model. Those that can tell early that a text will never pass
have a partial check, so that a backend that streams is stopped at once.
"""

from sampling._similarity import rouge_l
from sampling._text import unfenced
from sampling.checks.code import python_parses, python_runs
from sampling.checks.combined import all_of, any_of, not_, weighted
from sampling.checks.judged import judge
from sampling.checks.patterns import matches
from sampling.checks.structured import json, json_schema, model
from sampling.checks.text import length, number, one_of, similar_to

__all__ = [
    "all_of",
    "any_of",
    "json",
    "json_schema",
    "judge",
    "length",
    "matches",
    "model",
    "not_",
    "number",
    "one_of",
    "python_parses",
    "python_runs",
    "rouge_l",
    "similar_to",
    "unfenced",
    "weighted",
]
