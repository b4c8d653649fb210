"""Find what the types of fields consist of, and what decides the values of fields."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, cast, get_args, get_origin, get_type_hints

import attrs

__all__ = [
    "annotations_in",
    "classes_in",
    "field_settings",
    "has_fields",
    "own_hints",
    "settings_of_class",
    "type_hints",
    "type_name",
    "validators_of",
]


def classes_in(kind: Any, *, are_generic_seen: bool) -> Iterator[type[Any]]:
    """Yield the classes in a type, such as `list[City]`, and those with parameters, such as `Page[City]`, if seen."""
    for node in _nodes(kind):
        origin = get_origin(node)
        if isinstance(node, type):
            yield cast("type[Any]", node)
        if isinstance(origin, type) and are_generic_seen:
            yield cast("type[Any]", origin)


def annotations_in(kind: Any) -> list[Any]:
    """Return what `Annotated` adds to the parts of a type, such as a validator."""
    return [one for node in _nodes(kind) if get_origin(node) is Annotated for one in node.__metadata__]


def type_name(kind: Any, named: Any) -> str:
    """Return the text of a type, without what `Annotated` adds. `named` gives the names of classes."""
    if get_origin(kind) is Annotated:
        return type_name(kind.__origin__, named)
    if isinstance(kind, list):
        # The arguments of a `Callable`.
        return f"[{', '.join(type_name(one, named) for one in cast('Iterable[Any]', kind))}]"
    if isinstance(kind, type) and not get_args(kind):
        return str(named(kind))
    if get_origin(kind) is Literal or not get_args(kind):
        return str(kind)
    inner = ", ".join(type_name(one, named) for one in get_args(kind))
    return f"{type_name(get_origin(kind), named)}[{inner}]"


def _nodes(kind: Any, around: tuple[int, ...] = ()) -> Iterator[Any]:
    """Yield a type and all types in it."""
    yield kind
    if id(kind) not in around:
        for one in _parts(kind):
            yield from _nodes(one, (*around, id(kind)))


def _parts(kind: Any) -> Iterable[Any]:
    origin = get_origin(kind)
    if origin is Annotated:
        return (kind.__origin__,)
    if isinstance(kind, list):
        return cast("Iterable[Any]", kind)
    if _is_alias(kind):
        return (kind.__value__,)
    aliased = (origin,) if _is_alias(origin) else ()
    return () if origin is Literal else (*aliased, *get_args(kind))


def _is_alias(kind: Any) -> bool:
    """Return whether a type is one of a `type` statement."""
    return type(kind).__name__ == "TypeAliasType" and not get_args(kind)


# Fields.


def has_fields(kind: type[Any]) -> bool:
    """Return whether a class is a dataclass, an attrs class, a typed dict or a named tuple."""
    bases = kind.__mro__
    is_tuple = tuple in bases and hasattr(kind, "_fields")
    is_dict = dict in bases and hasattr(kind, "__total__")
    return dataclasses.is_dataclass(kind) or attrs.has(kind) or is_tuple or is_dict


def type_hints(kind: type[Any]) -> Mapping[str, Any]:
    """Return the types of the fields of a class, also where they are written as texts."""
    try:
        return get_type_hints(kind, include_extras=True)
    except Exception:  # noqa: BLE001 - a text may be anything
        # Such as the name of a class that is local to a function.
        return {name: hint for one in reversed(kind.__mro__) for name, hint in own_hints(one).items()}


def own_hints(thing: Any) -> Mapping[str, Any]:
    """Return the annotations of a class or a function, without those of its bases."""
    try:
        return cast("Mapping[str, Any]", getattr(thing, "__annotations__", {}))
    except Exception:  # noqa: BLE001 - Python 3.14 evaluates them when they are read
        return {}


def field_settings(kind: type[Any], *, with_flags: bool) -> dict[str, dict[str, Any]]:
    """
    Return what decides the values of fields, apart from their types: defaults, validators and converters.

    Flags are metadata, and settings such as whether objects are compared by a field, if they differ from the usual.
    """
    found: dict[str, dict[str, Any]] = {}
    added: dict[str, Mapping[Any, Any]] = {}
    if (models := getattr(kind, "model_fields", None)) is not None:
        flags = _MODEL_FLAGS if with_flags else {}
        found = {name: {**_of_model(field), **_unusual(field, flags)} for name, field in models.items()}
        private: Mapping[str, Any] = getattr(kind, "__private_attributes__", {})
        found |= {name: _given(field, "default", "default_factory") for name, field in private.items()}
    elif dataclasses.is_dataclass(kind):
        flags = _FLAGS if with_flags else {}
        found = {
            one.name: {**_given(one, "default", "default_factory"), **_unusual(one, flags)}
            for one in dataclasses.fields(kind)
        }
        added = {one.name: one.metadata for one in dataclasses.fields(kind)}
    elif attrs.has(kind):
        fields = cast("Iterable[Any]", attrs.fields(kind))
        flags = _ATTRS_FLAGS if with_flags else {}
        found = {
            one.name: {**_given(one, "default", "validator", "converter"), **_unusual(one, flags)} for one in fields
        }
        added = {one.name: one.metadata for one in fields}
    else:
        # A named tuple.
        found = {name: {"default": one} for name, one in getattr(kind, "_field_defaults", {}).items()}
    for name, metadata in added.items():
        if metadata and with_flags:
            found[name]["metadata"] = metadata
    return {name: settings for name, settings in found.items() if settings}


_FLAGS: Final = {"init": True, "repr": True, "hash": None, "compare": True, "kw_only": False}
_ATTRS_FLAGS: Final = {"init": True, "repr": True, "hash": None, "eq": True, "kw_only": False, "on_setattr": None}
_MODEL_FLAGS: Final = {
    **dict.fromkeys(("alias", "validation_alias", "serialization_alias", "discriminator")),
    **dict.fromkeys(("validate_default", "exclude", "init")),
    "repr": True,
}


def _unusual(field: Any, usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of a field that differ from the usual ones."""
    flags = {name: getattr(field, name, value) for name, value in usual.items()}
    return {name: value for name, value in flags.items() if value is not usual[name]}


def settings_of_class(kind: type[Any]) -> dict[str, Any]:
    """Return what decides how the objects of a class are made and compared, apart from its fields."""
    names = ("__eq__", "__lt__", "__hash__", "__setattr__")
    config: Any = getattr(kind, "__pydantic_config__", None)
    methods = [name for name in names if vars(kind).get(name) is not None]
    return {"defines": methods, **({} if config is None else {"config": config})}


def validators_of(kind: type[Any]) -> dict[str, dict[str, Any]]:
    """Return which fields the validators and serializers of a pydantic class are for, and when they run, by name."""
    found: Any = getattr(kind, "__pydantic_decorators__", None)
    groups: dict[str, dict[str, Any]] = {name: getattr(found, name, {}) for name in _DECORATORS}
    return {
        name: {method: _use_of(one.info) for method, one in group.items()} for name, group in groups.items() if group
    }


_DECORATORS: Final = ("field_validators", "model_validators", "field_serializers", "model_serializers")


def _use_of(info: Any) -> dict[str, Any]:
    return {name: getattr(info, name) for name in ("fields", "mode", "when_used") if hasattr(info, name)}


def _of_model(field: Any) -> dict[str, Any]:
    return {**_given(field, "default", "default_factory"), **({"metadata": field.metadata} if field.metadata else {})}


def _given(field: Any, *names: str) -> dict[str, Any]:
    """Return the settings of a field that it has."""
    settings = {name: getattr(field, name, None) for name in names}
    return {name: value for name, value in settings.items() if value is not None and not _is_missing(value)}


def _is_missing(value: Any) -> bool:
    kind = type(value).__name__
    return value is dataclasses.MISSING or value is attrs.NOTHING or kind == "PydanticUndefinedType"
