"""How failed requirements are put to a model."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from sampling._arguments import check_str, shown
from sampling.results import Slice

__all__ = ["check_template", "fill", "fill_fields"]

_ESCAPED_FIELD = re.compile(r"\{\{(action|answer|reasons)\}\}")


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
    """Fill a template in one pass: a reason may quote the model's braces, and they are not looked at."""
    listed = "\n".join([f"- {reason}" for reason in reasons])
    return _as_format(template).format(reasons=listed, action=action, answer=answer)


@lru_cache(maxsize=256)
def _as_format(template: str) -> str:
    """Return a template as `str.format` reads it: braces that are not around a field stand for themselves."""
    escaped = template.replace("{", "{{").replace("}", "}}")
    return _ESCAPED_FIELD.sub(r"{\1}", escaped)
