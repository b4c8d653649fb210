"""
Typed output: how the JSON of an answer becomes a value of a class, and which JSON schema that class has.

pydantic does the work, for its own models and for dataclasses, typed dicts and containers of all these.
It does not know attrs classes, so those are shown to it as a dict of their fields, and made of what it returns.
"""

import dataclasses
from collections.abc import Callable, Hashable
from functools import lru_cache
from types import UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NotRequired,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import attrs

from sampling._json.extraction import brief, pointer, read_json, told
from sampling._text import unfenced
from sampling.errors import MissingExtra

__all__ = ["TypedReader", "is_shape", "reader_of"]

T = TypeVar("T")


class TypedReader(Generic[T]):
    """A parser that reads an answer as JSON into a `T`; a fence around the JSON does no harm."""

    __slots__ = ("_adapter", "_shape", "schema")

    schema: Any
    """What backends that can constrain decoding are given: the pydantic model itself, or a JSON schema."""

    def __init__(self, shape: Any, adapter: Any, schema: Any) -> None:
        self._shape = shape
        self._adapter = adapter
        self.schema = schema

    def __call__(self, text: str) -> T:
        """Read what stands in the first fence of an answer, or all of it."""
        return self.read(unfenced(text))

    @property
    def name(self) -> str:
        """What the reader makes, in words."""
        return _name(self._shape)

    def read(self, text: str) -> T:
        """Read JSON; a ValueError says where it is wrong, what is wrong, and what is allowed there."""
        from pydantic import ValidationError  # noqa: PLC0415 - an extra; whoever has a reader has it

        # For what pydantic's own parser lets through: nesting without end, and keys that are there twice.
        read_json(text)
        try:
            return cast("T", self._adapter.validate_json(text.strip()))
        except ValidationError as error:
            problems = [_problem(one) for one in error.errors(include_url=False, include_context=False)]
            raise ValueError(told(problems)) from None

    def __reduce__(self) -> tuple[Any, ...]:
        # pydantic's adapters can't be copied or sent to another process; the class can.
        return reader_of, (self._shape,)

    def __repr__(self) -> str:
        return f"<reads {self.name} from JSON>"


def _problem(problem: Any) -> str:
    where, what = pointer(problem["loc"]), str(problem["msg"])
    if problem["type"] == "missing":
        return f"{where} is missing"
    return f"at {where}: {what[:1].lower()}{what[1:]}, got {brief(problem['input'])}"


def is_shape(parser: object) -> bool:
    """Tell a class whose fields are read from JSON, or a container of such, from a callable that takes the text."""
    if get_origin(parser) is not None:
        return True
    return isinstance(parser, type) and (_has_fields(parser) or _is_typed_dict(parser) or _is_pydantic(parser))


def _is_typed_dict(shape: type[Any]) -> bool:
    # typing's own test does not know those of typing_extensions, which pydantic wants before Python 3.12.
    return hasattr(shape, "__total__") and issubclass(shape, dict)


def _is_pydantic(shape: type) -> bool:
    # By its looks: importing pydantic to find out that something is not its model would make everybody pay.
    return hasattr(shape, "__pydantic_validator__")


def reader_of(shape: Any) -> TypedReader[Any]:
    """Return the reader of a shape; it is made once, for making one takes longer than reading a hundred answers."""
    return _cached_reader(shape) if _is_hashable(shape) else _new_reader(shape)


def _is_hashable(shape: object) -> bool:
    try:
        hash(shape)
    except TypeError:
        return False
    return isinstance(shape, Hashable)


@lru_cache(maxsize=256)
def _cached_reader(shape: Any) -> TypedReader[Any]:
    return _new_reader(shape)


def _new_reader(shape: Any) -> TypedReader[Any]:
    try:
        from pydantic import TypeAdapter  # noqa: PLC0415 - an extra: only those with typed answers need it
        from pydantic.errors import PydanticUserError  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra(f"an answer read as {_name(shape)}", "pydantic", "pydantic") from error
    try:
        adapter: Any = TypeAdapter(_for_pydantic(shape, ()))
        # Backends know such a class as a schema, and close it as their server wants it.
        schema = shape if hasattr(shape, "model_json_schema") else adapter.json_schema()
    except (PydanticUserError, NameError, _CanNotBeShown) as error:
        reason = str(error).partition("\n")[0]
        raise TypeError(f"parser must be a class whose fields JSON can hold, got {_name(shape)}: {reason}") from None
    return TypedReader(shape, adapter, schema)


def _name(shape: object) -> str:
    return shape.__name__ if isinstance(shape, type) and get_origin(shape) is None else str(shape)


# What pydantic does not know by itself.


class _CanNotBeShown(Exception):
    """A class that can't be shown to pydantic."""


def _for_pydantic(shape: Any, inside: tuple[Any, ...]) -> Any:
    """Return a type that pydantic understands in place of this one, all the way down; `inside` are those above."""
    origin = get_origin(shape)
    if origin is Annotated:
        inner, *notes = get_args(shape)
        return Annotated[_for_pydantic(inner, inside), *notes]
    if origin is not None and origin is not Literal:
        return _with_arguments(origin, tuple([_for_pydantic(argument, inside) for argument in get_args(shape)]))
    if isinstance(shape, type) and _has_fields(shape):
        return _as_fields(shape, inside)
    return shape


def _with_arguments(origin: Any, arguments: tuple[Any, ...]) -> Any:
    if origin is UnionType:
        return Union[arguments]  # noqa: UP007 - there is no other way to make one of a tuple
    return origin[arguments] if arguments else origin


def _has_fields(shape: type[Any]) -> bool:
    return attrs.has(shape) or (dataclasses.is_dataclass(shape) and not _is_pydantic(shape))


def _as_fields(shape: Any, inside: tuple[Any, ...]) -> Any:
    """Annotate a class so that pydantic reads a dict of its fields, and then makes one of it."""
    from pydantic import ConfigDict, GetPydanticSchema, with_config  # noqa: PLC0415 - an extra
    from pydantic_core import core_schema  # noqa: PLC0415
    from typing_extensions import TypedDict  # noqa: PLC0415 - pydantic brings it, and wants no other before 3.12

    if shape in inside:
        raise _CanNotBeShown(f"{shape.__name__} holds itself; make it a pydantic model")
    hints = get_type_hints(shape, include_extras=True)
    fields: dict[str, Any] = {}
    for field in _fields_of(shape):
        type_of_field = _for_pydantic(hints.get(field.name, Any), (*inside, shape))
        fields[field.key] = type_of_field if field.required else NotRequired[type_of_field]
    # What a class has no field for is ignored; so asking a constrained backend to leave it out loses nothing.
    config = ConfigDict(json_schema_extra={"additionalProperties": False})
    as_dict: Any = with_config(config)(cast("Any", TypedDict)(shape.__name__, fields))

    def make(values: dict[str, Any]) -> Any:
        try:
            return shape(**values)
        except TypeError as error:
            # As attrs' own validators raise it; pydantic takes only a ValueError for the answer's fault.
            raise ValueError(str(error)) from None

    def read(_source: Any, handler: Callable[[Any], Any]) -> Any:
        return core_schema.no_info_after_validator_function(make, handler(as_dict))

    return Annotated[shape, GetPydanticSchema(read)]


@attrs.frozen
class _Field:
    """A field of a class, as its constructor takes it."""

    name: str
    key: str
    required: bool


def _fields_of(shape: Any) -> list[_Field]:
    if attrs.has(shape):
        return [
            _Field(field.name, field.alias or field.name, field.default is attrs.NOTHING)
            for field in attrs.fields(shape)
            if field.init
        ]
    return [
        _Field(field.name, field.name, field.default is field.default_factory is dataclasses.MISSING)
        for field in dataclasses.fields(shape)
        if field.init
    ]
