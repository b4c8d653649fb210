"""Adapt JSON schemas to what the constrained decoding of Anthropic accepts."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, cast

from sampling._output_types import DerivedSchema
from sampling.backends._structured import AnswerSchema, answer_schema
from sampling.backends.http._fields import Json

__all__ = ["native_schema"]

# The rules: https://platform.claude.com/docs/en/build-with-claude/structured-outputs#json-schema-limitations
# What only narrows the values may be left out, because the answer is validated. The model is told of it in words.
_TOLD = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "pattern")


def native_schema(schema: object) -> Mapping[str, Any] | None:
    """
    Return the schema to send, or None if the API can't enforce it.

    The schema of a type is rewritten if it can be. A schema of the caller's own goes as it is.
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
    if not answer.strict or _is_recursive(answer.schema):
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


def _is_recursive(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema refers to itself, directly or through its definitions."""
    definitions: Json = {f"#/$defs/{name}": node for name, node in schema.get("$defs", {}).items()}
    root = {name: node for name, node in schema.items() if name != "$defs"}
    refers = {"#": set(_references(root)), **{name: set(_references(node)) for name, node in definitions.items()}}
    for start, targets in refers.items():
        reached: set[str] = set()
        waiting = set(targets)
        while waiting:
            name = waiting.pop()
            reached.add(name)
            waiting |= refers.get(name, set()) - reached
        if start in reached:
            return True
    return False


def _references(node: object) -> Iterable[str]:
    if isinstance(node, Mapping):
        fields = cast("Json", node)
        if isinstance(reference := fields.get("$ref"), str):
            yield reference
        for value in fields.values():
            yield from _references(value)
    elif isinstance(node, list):
        for item in cast("list[object]", node):
            yield from _references(item)
