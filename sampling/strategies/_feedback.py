"""Templates that tell a model why its answer failed."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from sampling._arguments import check_str, short_repr
from sampling.results import Slice

__all__ = ["check_template", "fill", "fill_fields"]

_ESCAPED_FIELD = re.compile(r"\{\{(action|answer|reasons)\}\}")


def check_template(template: object, *fields: str) -> str:
    """Return the template, or raise if a field is missing."""
    text = check_str("template", template, empty=False)
    for field in fields:
        if field not in text:
            raise ValueError(f"template must contain {field}, got {short_repr(text)}")
    return text


def fill(template: str, failed: Slice[Any], *, action: str = "") -> str:
    """Fill a template with the feedback on one failed slice."""
    return fill_fields(template, reasons=failed.complaints, action=action, answer=failed.text or "")


def fill_fields(template: str, *, reasons: Iterable[str], action: str, answer: str) -> str:
    """
    Fill all fields of a template in one pass.

    One pass is needed because a reason may quote braces that the model wrote.
    """
    listed = "\n".join([f"- {reason}" for reason in reasons])
    return _as_format(template).format(reasons=listed, action=action, answer=answer)


@lru_cache(maxsize=256)
def _as_format(template: str) -> str:
    """
    Convert a template to `str.format` syntax.

    All braces that are not around a known field are escaped, so that a template may contain JSON.
    """
    escaped = template.replace("{", "{{").replace("}", "}}")
    return _ESCAPED_FIELD.sub(r"{\1}", escaped)
