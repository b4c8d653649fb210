"""How failed requirements are put to a model."""

from typing import Any

from sampling._arguments import check_str, shown
from sampling.results import Slice

__all__ = ["check_template", "fill"]


def check_template(template: object, *fields: str) -> str:
    """Return a template that has all of these fields in it."""
    text = check_str("template", template, empty=False)
    for field in fields:
        if field not in text:
            raise ValueError(f"template must contain {field}, got {shown(text)}")
    return text


def fill(template: str, failed: Slice[Any], *, action: str = "") -> str:
    """Put the reasons of a failure into a template; not by formatting, for a reason may quote the model's braces."""
    before, _, after = template.partition("{reasons}")
    if action:
        before, after = before.replace("{action}", action), after.replace("{action}", action)
    reasons = "\n- ".join(failed.complaints)
    return f"{before}- {reasons}{after}"
