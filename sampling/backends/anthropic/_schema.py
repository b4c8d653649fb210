"""Adapt JSON schemas to Anthropic's constrained decoding."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

from sampling._json.schemas import recursive_references
from sampling._schemas.output_types import DerivedSchema
from sampling.backends._structured import AnswerSchema, answer_schema
from sampling.backends.http._fields import Json

__all__ = ["native_schema"]

# The rules: https://platform.claude.com/docs/en/build-with-claude/structured-outputs#json-schema-limitations
# Keywords that only narrow the values may be left out, because the answer is validated. They move to descriptions.
_TOLD = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "pattern")

# The API's own words are "limit: 16 parameters with unions". What it refuses all the same is asked for by a tool.
_MAX_UNIONS = 16
"""The maximum number of unions in a schema. Fields with a default are unions with null."""


def native_schema(schema: object) -> Mapping[str, Any] | None:
    """
    Return the schema to send, or None if the API can't enforce it.

    The schema of a type is rewritten if possible. A schema that the caller wrote is sent unchanged.
    """
    if isinstance(schema, Mapping) and not isinstance(schema, DerivedSchema):
        return answer_schema(cast("Mapping[str, Any]", schema)).schema
    if isinstance(schema, type):
        return _of_class(schema)
    return _rewritten(answer_schema(schema))


@lru_cache(maxsize=256)
def _of_class(schema: type) -> Mapping[str, Any] | None:
    return _rewritten(answer_schema(schema))


def _rewritten(answer: AnswerSchema) -> Mapping[str, Any] | None:
    if not answer.strict or recursive_references(answer.schema) or _count_unions(answer.schema) > _MAX_UNIONS:
        return None
    return cast("Json", _told_in_words(answer.schema))


def _told_in_words(node: Any) -> Any:
    if isinstance(node, list):
        return [_told_in_words(item) for item in cast("list[object]", node)]
    if not isinstance(node, Mapping):
        return node
    rewritten: Json = {}
    for name, value in cast("Json", node).items():
        # Below these two there are names of the user, which may be those of keywords.
        if name in {"$defs", "properties"}:
            rewritten[name] = {key: _told_in_words(inner) for key, inner in value.items()}
        else:
            rewritten[name] = value if name in {"const", "enum"} else _told_in_words(value)
    told = [f"{name}: {rewritten.pop(name)}" for name in _TOLD if name in rewritten and not _is_known(name, rewritten)]
    if told:
        rewritten["description"] = " ".join(
            [*([rewritten["description"]] if "description" in rewritten else []), *told]
        )
    return rewritten


def _is_known(name: str, node: Json) -> bool:
    return name == "minItems" and node[name] in {0, 1}


def _count_unions(node: object) -> int:
    """Return the number of unions in a schema."""
    if isinstance(node, Mapping):
        fields = cast("Json", node)
        is_union = isinstance(fields.get("anyOf"), list) or isinstance(fields.get("type"), list)
        return is_union + sum([_count_unions(value) for value in fields.values()])
    return sum([_count_unions(item) for item in cast("list[object]", node)]) if isinstance(node, list) else 0
