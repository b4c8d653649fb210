"""Requirements for JSON, by schema or by class."""

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from json import JSONDecodeError, JSONDecoder
from typing import Any

from sampling._arguments import check_bool, check_str, wrong_type
from sampling._json.extraction import join_problems, read_json
from sampling._json.time_limit import TooComplex, may_go_on_in_thread, within_time
from sampling._schemas.output_types import is_output_type, reader_for
from sampling._schemas.validation import Schema
from sampling._text import unfenced
from sampling.requirements import Requirement, Verdict

__all__ = ["json", "json_schema", "model"]


def json(*, fenced: bool = False) -> Requirement:
    """
    Require JSON and nothing else.

    `fenced=True` reads the first ``` block.
    """
    return _json_requirement("is JSON", read_json, fenced=fenced)


def model(shape: Any, *, fenced: bool = False) -> Requirement:
    """
    Require JSON that matches a class.

    The class is a pydantic model, an attrs class, a dataclass, or a container of these.
    To get the object as the value of the result, give the class to the action instead: `Action("…", Flight)`.
    It needs the extra `pydantic`.
    """
    if not is_output_type(shape):
        raise wrong_type("shape", shape, "a pydantic model, an attrs class, a dataclass, or a container of these")
    reader = reader_for(shape)
    return _json_requirement(f"is the JSON of a {reader.name}", reader.read, fenced=fenced)


def json_schema(schema: Mapping[str, Any], description: str | None = None, *, fenced: bool = False) -> Requirement:
    """
    Require JSON that matches a JSON schema.

    A `$ref` may point only into the schema itself. Nothing is ever fetched.
    It needs the extra `jsonschema`, which includes `regex`, so that a pattern can't stall the process.
    """
    if not isinstance(schema, Mapping):
        raise wrong_type("schema", schema, "a JSON schema (a dict)")
    if description is not None:
        check_str("description", description, empty=False)
    validator = Schema(schema)

    def fits(text: str) -> None:
        problems = validator.problems(read_json(text))
        if problems:
            raise ValueError(join_problems(problems))

    title = schema.get("title")
    named = f"is JSON that fits the schema {title}" if isinstance(title, str) else "is JSON that fits the schema"
    return _json_requirement(description or named, fits, fenced=fenced)


def _json_requirement(description: str, read: Callable[[str], object], *, fenced: bool) -> Requirement:
    """
    Build a requirement from a function that reads JSON.

    The function raises ValueError for a bad text.
    """
    check_bool("fenced", fenced)

    def verdict(text: str) -> Verdict:
        try:
            read(unfenced(text) if fenced else text)
        except ValueError as error:
            return False, str(error)
        except TooComplex as error:
            if may_go_on_in_thread():
                raise
            return False, str(error)
        return True

    def is_right(text: str) -> Verdict | Awaitable[Verdict]:
        return within_time(partial(verdict, text))

    # Before a fence there may be any text, so nothing can be ruled out early.
    return Requirement(description, is_right, partial=None if fenced else may_become_json)


# Partial JSON.

_MAX_PREFIX_CHARS = 512
"""Maximum length for the partial check, because text that is not JSON usually shows it in the first word."""

_UNFINISHED_VALUE = re.compile(r"-?\d{0,300}|t|tr|tru|f|fa|fal|fals|n|nu|nul")
_UNFINISHED_NUMBER = re.compile(r"\.?\d{0,300}(?:[eE][+-]?\d{0,300})?")


def may_become_json(text: str) -> Verdict:
    """
    Return True if a text can become JSON by continuing it.

    That is so if its only error is that it ends too early.
    """
    # Leave deep nesting to the full check, because the decoder recurses for each bracket.
    if len(text) > _MAX_PREFIX_CHARS or text.count("[") + text.count("{") > _MAX_PREFIX_CHARS // 8:
        return True
    start = text.strip()
    try:
        _decode(start)
    except JSONDecodeError as error:
        return _is_cut_off(start, error), "it is not JSON: begin with the JSON itself, and say nothing around it"
    return True


_decode: Callable[[str], Any] = partial(JSONDecoder.decode, JSONDecoder())


def _is_cut_off(text: str, error: JSONDecodeError) -> bool:
    rest = text[error.pos :]
    if not rest or error.msg.startswith("Unterminated"):
        return True
    if "\\u" in error.msg:
        return len(rest) < 6
    if error.msg == "Expecting value":
        return _UNFINISHED_VALUE.fullmatch(rest) is not None
    # A number may continue: "1" and then ".5".
    return text[error.pos - 1 : error.pos].isdigit() and _UNFINISHED_NUMBER.fullmatch(rest) is not None
