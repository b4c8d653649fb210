"""Safe JSON schema validation: no fetching, no unbounded patterns."""

import importlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from sampling._arguments import short_repr
from sampling._json.extraction import json_pointer
from sampling._json.time_limit import TooComplex, count_step, may_go_on_in_thread, time_limit
from sampling._schemas.patterns import compiled, fits
from sampling.errors import MissingExtra

__all__ = ["Schema"]

_PATTERN_TIMEOUT_S = 1.0
_LONGEST_MESSAGE = 200


class Schema:
    """A validated JSON schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            self._jsonschema: Any = importlib.import_module("jsonschema")
            registry: Any = importlib.import_module("referencing").Registry
        except ImportError as error:
            raise MissingExtra("json_schema()", "jsonschema", "jsonschema") from error
        _reject_unbounded(schema)
        kind = self._kind_of(schema)
        replaced = {
            "pattern": self._fits_pattern,
            "patternProperties": self._fits_pattern_properties,
            "additionalProperties": self._has_no_other_properties,
            "uniqueItems": self._has_unique_items,
        }
        keywords = {**kind.VALIDATORS, **{name: one for name, one in replaced.items() if name in kind.VALIDATORS}}
        bounded = self._jsonschema.validators.extend(kind, {name: _counted(one) for name, one in keywords.items()})
        # Use an empty registry, because the default one fetches unknown references.
        self._validator = bounded(dict(schema), registry=registry())

    def _kind_of(self, schema: Mapping[str, Any]) -> Any:
        """
        Return the validator class for the draft of a schema.

        Raise ValueError if it is no valid schema.
        """
        kind = self._jsonschema.validators.validator_for(schema, default=self._jsonschema.Draft202012Validator)
        try:
            kind.check_schema(schema)
        except self._jsonschema.SchemaError as error:
            problem = f"at {json_pointer(error.absolute_path)}: {_cut(error.message)}"
            raise ValueError(f"schema must be a valid JSON schema, got an invalid one, {problem}") from None
        return kind

    def _has_unique_items(self, _validator: Any, unique: object, instance: object, _schema: Any) -> Iterator[Exception]:
        """Compare in linear time. The original compares every pair."""
        if unique and isinstance(instance, list):
            items = cast("list[object]", instance)
            if len({_canonical(item) for item in items}) < len(items):
                yield self._jsonschema.ValidationError("it has non-unique elements")

    # Replacements for the keywords with patterns. The originals use the standard library's `re`, which has no timeout.

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

    def problems_within(self, seconds: float, value: object) -> list[str]:
        """
        Return the problems of a value, of which too much time is one.

        Raise `TooComplex` if the work can go on in a thread.
        """
        try:
            with time_limit(seconds):
                return self.problems(value)
        except (TooComplex, TimeoutError):
            if may_go_on_in_thread():
                raise
            return [str(TooComplex())]

    def problems(self, value: object) -> list[str]:
        """
        Return the problems of a value, with their places.

        Raise `TooComplex` if the time is up, and TimeoutError if it is that of a pattern.
        """
        errors = sorted(self._validator.iter_errors(value), key=_place)
        return [self._problem(error) for error in errors]

    def _problem(self, error: Any) -> str:
        if error.context:
            # For anyOf and the like, report the error of the subschema that matches best.
            error = self._jsonschema.exceptions.best_match([error])
        where = json_pointer(error.absolute_path)
        if error.validator == "type":
            wanted = error.validator_value
            kinds = wanted if isinstance(wanted, str) else " or ".join(wanted)
            return f"at {where}: must be of type {kinds}, got {short_repr(error.instance)}"
        return f"at {where}: {_cut(error.message)}"


def _counted(keyword: Any) -> Any:
    """Return a keyword that counts a step."""

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        count_step()
        return keyword(validator, value, instance, schema)

    return check


def _canonical(value: object) -> str:
    """Return a text that is equal for equal JSON values. 1 equals 1.0, and is not true."""
    return json.dumps(_with_whole_numbers(value), sort_keys=True)


def _with_whole_numbers(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        return {name: _with_whole_numbers(item) for name, item in cast("dict[str, object]", value).items()}
    return value


def _place(error: Any) -> tuple[str, ...]:
    return tuple(map(str, error.absolute_path))


def _cut(message: str) -> str:
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[: _LONGEST_MESSAGE - 1]}…"


def _found(pattern: str, text: str) -> bool:
    return fits(compiled("json_schema()", pattern).search, text, _PATTERN_TIMEOUT_S)


def _properties(instance: object) -> "Iterable[tuple[str, Any]]":
    return cast("Mapping[str, Any]", instance).items() if isinstance(instance, Mapping) else ()


def _reject_unbounded(schema: object) -> None:
    """
    Raise ValueError for keywords that can't be bounded.

    These are references to other documents, and patterns that would run without a timeout.
    """
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
    # Anywhere in the schema, because unevaluatedProperties follows allOf, $ref and the like.
    if {"unevaluatedProperties", "patternProperties"} <= keywords:
        raise ValueError(
            "schema must not have both unevaluatedProperties and patternProperties, because those patterns would run "
            "without a timeout: use additionalProperties"
        )
