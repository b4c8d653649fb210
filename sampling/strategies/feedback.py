"""How failed requirements are put to a model."""

import re
from collections.abc import Iterable
from typing import Any

from sampling._arguments import check_str, shown
from sampling.results import Slice

__all__ = ["check_template", "fill", "fill_fields"]

_FIELD = re.compile(r"\{(action|answer|reasons)\}")


def check_template(template: object, *fields: str) -> str:
    """Return a template that has all of these fields in it."""
    text = check_str("template", template, empty=False)
    for field in fields:
        if field not in text:
            raise ValueError(f"template must contain {field}, got {shown(text)}")
    return text


def fill(template: str, failed: Slice[Any], *, action: str = "") -> str:
    """Put the reasons of one failure, its answer and the action into a template, as far as it has places for them."""
    return fill_fields(template, reasons=failed.complaints, action=action, answer=failed.text or "")


def fill_fields(template: str, *, reasons: Iterable[str], action: str, answer: str) -> str:
    """Fill a template in one pass, and not by formatting: a reason may quote the model's braces."""
    values = {"reasons": "\n".join([f"- {reason}" for reason in reasons]), "action": action, "answer": answer}
    return _FIELD.sub(lambda field: values[field[1]], template)
