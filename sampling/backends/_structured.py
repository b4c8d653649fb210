"""Ask for an answer that matches a schema: natively, with a tool, or in the prompt."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain, count
from typing import Any, Literal, TypeAlias, cast, get_args

import attrs

from sampling._arguments import short_repr, wrong_type
from sampling._json.schemas import close_objects, inline_root, is_strict, strict_schema
from sampling._schemas.output_types import DerivedSchema
from sampling.messages import Generation, Message, Request
from sampling.options import Options
from sampling.parts import Text
from sampling.tools import Tool

__all__ = [
    "AnswerSchema",
    "Structured",
    "answer_from_tool",
    "answer_schema",
    "answer_tool_name",
    "check_structured",
    "feasible",
    "with_instruction",
    "without_schema",
]

Structured: TypeAlias = Literal["native", "tool", "prompt"]
"""
How to ask for an answer that matches a schema.

"native" gives the schema to the server, which constrains the answer. "tool" makes the model call a tool whose arguments
are the answer. "prompt" puts the schema into the last message, for servers that can do neither.
"""


@attrs.frozen
class AnswerSchema:
    """A schema as it is sent."""

    name: str
    schema: Mapping[str, Any]
    strict: bool
    """True if strict mode accepts it."""


def check_structured(structured: object) -> Structured:
    """Return a mode, or raise a ValueError that lists the modes."""
    if structured not in get_args(Structured):
        raise ValueError(f"structured must be 'native', 'tool' or 'prompt', got {short_repr(structured)}")
    return cast("Structured", structured)


def answer_schema(schema: object) -> AnswerSchema:
    """
    Return the schema to send for a JSON schema (a dict) or a pydantic model class.

    The schema of a type is rewritten for strict mode if it can be. A schema that the caller wrote is sent unchanged.
    """
    if isinstance(schema, type) and hasattr(schema, "model_json_schema"):
        return _of_model(schema)
    if not isinstance(schema, Mapping):
        raise wrong_type("options.schema", schema, "a JSON schema (a dict) or a pydantic model class")
    given = cast("Mapping[str, Any]", schema)
    if isinstance(schema, DerivedSchema):
        return _rewritten(_title(given), given)
    return AnswerSchema(_title(given), dict(given), is_strict(given))


@lru_cache(maxsize=256)
def _of_model(model: Any) -> AnswerSchema:
    return _rewritten(_safe_name(model.__name__), model.model_json_schema())


def _rewritten(name: str, schema: Mapping[str, Any]) -> AnswerSchema:
    strict = strict_schema(schema)
    return AnswerSchema(name, close_objects(inline_root(schema)) if strict is None else strict, strict is not None)


def _title(schema: Mapping[str, Any]) -> str:
    return _safe_name(str(schema.get("title") or "answer"))


def _safe_name(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in name)[:64]


def with_instruction(messages: Sequence[Message], schema: AnswerSchema) -> tuple[Message, ...]:
    """Return messages whose last one asks for JSON that matches a schema."""
    text = "\n".join(
        ["Answer with JSON that matches this schema, and with nothing before or after it:", _as_text(schema)]
    )
    if not messages or messages[-1].role != "user":
        return (*messages, Message("user", text))
    last = messages[-1]
    if isinstance(last.content, str):
        return (*messages[:-1], Message("user", f"{last.content}\n\n{text}"))
    return (*messages[:-1], Message("user", (*last.content, Text(f"\n\n{text}"))))


def _as_text(schema: AnswerSchema) -> str:
    return json.dumps(schema.schema, ensure_ascii=False, default=dict)


def feasible(structured: Structured, options: Options) -> Structured:
    """Return how to ask for a schema. Anything but an object goes into the prompt, because tools take objects."""
    if structured != "tool" or options.schema is None:
        return structured
    return "tool" if answer_schema(options.schema).schema.get("type") == "object" else "prompt"


def answer_tool_name(options: Options) -> str:
    """Return a name for the tool that takes the answer, different from all tools of the request."""
    name = answer_schema(options.schema).name
    taken = {one.name for one in options.tools}
    # Providers take names of up to 64 characters.
    others = chain([f"answer_{name}"[:64]], (f"answer_{number}" for number in count(1)))
    return name if name not in taken else next(other for other in others if other not in taken)


def without_schema(request: Request, structured: Structured) -> Request:
    """Return a request that asks for its schema with a tool or in the prompt, for libraries without schemas."""
    options = request.options
    if options.schema is None or structured == "native":
        return request
    schema = answer_schema(options.schema)
    rest = attrs.evolve(options, schema=None)
    if feasible(structured, options) == "prompt":
        return attrs.evolve(request, messages=with_instruction(request.messages, schema), options=rest)
    answer = Tool(answer_tool_name(options), "Give the answer.", schema.schema)
    choice = options.tool_choice if options.tools and options.tool_choice else "required"
    return attrs.evolve(request, options=attrs.evolve(rest, tools=(*options.tools, answer), tool_choice=choice))


def answer_from_tool(generation: Generation, options: Options) -> Generation:
    """Return a generation whose text is the arguments of the answer's tool, if it was called."""
    name = answer_tool_name(options)
    answers = [call for call in generation.tool_calls if call.name == name]
    if not answers:
        return generation
    others = tuple([call for call in generation.tool_calls if call.name != name])
    ended = "stop" if generation.finish_reason == "tool_calls" and not others else generation.finish_reason
    return attrs.evolve(generation, text=answers[0].arguments, tool_calls=others, finish_reason=ended)
