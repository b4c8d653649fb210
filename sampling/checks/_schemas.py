"""JSON schemas: nothing is fetched, nothing runs without end, and what is wrong is said with its place."""

import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from sampling._json.extraction import json_pointer, short_repr
from sampling.checks.patterns import compiled
from sampling.errors import MissingExtra

__all__ = ["Schema"]

_PATTERN_TIMEOUT_S = 1.0
_LONGEST_MESSAGE = 200


class Schema:
    """A JSON schema that was checked, and checks values."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            self._jsonschema: Any = importlib.import_module("jsonschema")
            registry: Any = importlib.import_module("referencing").Registry
        except ImportError as error:
            raise MissingExtra("json_schema()", "jsonschema", "jsonschema") from error
        _refuse_what_has_no_bound(schema)
        kind = self._kind_of(schema)
        bounded = self._jsonschema.validators.extend(
            kind,
            {
                "pattern": self._fits_pattern,
                "patternProperties": self._fits_pattern_properties,
                "additionalProperties": self._has_no_other_properties,
            },
        )
        # A registry of its own, and empty: the default one would fetch what it does not know.
        self._validator = bounded(dict(schema), registry=registry())

    def _kind_of(self, schema: Mapping[str, Any]) -> Any:
        """Return the draft that a schema is written for, if it is a schema at all."""
        kind = self._jsonschema.validators.validator_for(schema, default=self._jsonschema.Draft202012Validator)
        try:
            kind.check_schema(schema)
        except self._jsonschema.SchemaError as error:
            what = f"at {json_pointer(error.absolute_path)}: {_cut(error.message)}"
            raise ValueError(f"schema must be a JSON schema, got one that is not, {what}") from None
        return kind

    # Keywords with patterns in them, with a timeout; the standard library's `re`, which they use, can't be stopped.

    def _fits_pattern(self, _validator: Any, pattern: str, instance: object, _schema: Any) -> Iterator[Exception]:
        if isinstance(instance, str) and not _found(pattern, instance):
            yield self._jsonschema.ValidationError(f"{short_repr(instance)} does not match {pattern}")

    def _fits_pattern_properties(
        self, validator: Any, patterns: Mapping[str, Any], instance: object, _schema: Any
    ) -> Iterator[Exception]:
        for name, value in _properties(instance):
            for pattern, subschema in patterns.items():
                if _found(pattern, name):
                    yield from validator.descend(value, subschema, path=name, schema_path=pattern)

    def _has_no_other_properties(
        self, validator: Any, allowed: Any, instance: object, schema: Mapping[str, Any]
    ) -> Iterator[Exception]:
        known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        others = [
            (name, value)
            for name, value in _properties(instance)
            if name not in known and not any(_found(pattern, name) for pattern in patterns)
        ]
        if isinstance(allowed, Mapping):
            for name, value in others:
                yield from validator.descend(value, allowed, path=name)
        elif others and not allowed:
            names = ", ".join(short_repr(name) for name, _ in others)
            were = "was" if len(others) == 1 else "were"
            yield self._jsonschema.ValidationError(f"Additional properties are not allowed ({names} {were} unexpected)")

    def problems(self, value: object) -> list[str]:
        """Return what is wrong with a value: where, what, and what is allowed there."""
        errors = sorted(self._validator.iter_errors(value), key=_place)
        return [self._problem(error) for error in errors]

    def _problem(self, error: Any) -> str:
        if error.context:
            # What none of several schemas allows is told by the one that came nearest.
            error = self._jsonschema.exceptions.best_match([error])
        where = json_pointer(error.absolute_path)
        if error.validator == "type":
            wanted = error.validator_value
            kinds = wanted if isinstance(wanted, str) else " or ".join(wanted)
            return f"at {where}: must be of type {kinds}, got {short_repr(error.instance)}"
        return f"at {where}: {_cut(error.message)}"


def _place(error: Any) -> tuple[str, ...]:
    return tuple(map(str, error.absolute_path))


def _cut(message: str) -> str:
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[: _LONGEST_MESSAGE - 1]}…"


def _found(pattern: str, text: str) -> bool:
    return compiled("json_schema()", pattern).search(text, timeout=_PATTERN_TIMEOUT_S) is not None


def _properties(instance: object) -> "Iterable[tuple[str, Any]]":
    return cast("Mapping[str, Any]", instance).items() if isinstance(instance, Mapping) else ()


def _refuse_what_has_no_bound(schema: object) -> None:
    """Refuse what would be fetched from elsewhere, and patterns that could run without end."""
    waiting = [schema]
    keywords: set[str] = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            mapping = cast("Mapping[str, Any]", node)
            for name in ("$ref", "$dynamicRef", "$recursiveRef"):
                target = mapping.get(name, "#")
                if isinstance(target, str) and not target.startswith("#"):
                    raise ValueError(f"a {name} in schema must point into the schema (#…), got {short_repr(target)}")
            keywords.update(mapping)
            waiting.extend(mapping.values())
        elif isinstance(node, list):
            waiting.extend(cast("list[object]", node))
    # Wherever the two stand: what is evaluated is looked for through allOf, $ref and the like.
    if {"unevaluatedProperties", "patternProperties"} <= keywords:
        raise ValueError(
            "schema must not have both unevaluatedProperties and patternProperties, whose patterns could not be "
            "stopped there: use additionalProperties"
        )
