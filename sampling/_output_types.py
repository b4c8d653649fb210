"""
Read typed values from JSON answers, and build the JSON schema of their types.

This uses pydantic, for its own models, dataclasses, typed dicts and containers of them.
pydantic does not support attrs classes, so they are declared to it as a typed dict of their fields,
and constructed from the validated dict.
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

from sampling._arguments import short_repr
from sampling._json.extraction import join_problems, json_pointer, read_json
from sampling._text import unfenced
from sampling.errors import MissingExtra

__all__ = ["TypedReader", "is_output_type", "reader_for"]

T = TypeVar("T")


class TypedReader(Generic[T]):
    """
    A parser that reads a JSON answer into a `T`.

    The answer may be in a code fence.
    """

    __slots__ = ("_adapter", "_shape", "schema")

    schema: Any
    """The schema for constrained decoding: the pydantic model itself, or a JSON schema."""

    def __init__(self, shape: Any, adapter: Any, schema: Any) -> None:
        self._shape = shape
        self._adapter = adapter
        self.schema = schema

    def __call__(self, text: str) -> T:
        """Read the first fenced block of an answer, or all of it."""
        return self.read(unfenced(text))

    @property
    def name(self) -> str:
        """The name of the type, for messages."""
        return _name(self._shape)

    def read(self, text: str) -> T:
        """
        Read JSON.

        Raise a ValueError that says where and what is wrong.
        """
        from pydantic import ValidationError  # noqa: PLC0415 - an extra, installed if a reader exists

        # pydantic's own parser accepts unlimited nesting and duplicate keys, so check those first.
        read_json(text)
        try:
            return cast("T", self._adapter.validate_json(text.strip()))
        except ValidationError as error:
            problems = [_problem(one) for one in error.errors(include_url=False, include_context=False)]
            raise ValueError(join_problems(problems)) from None

    def __reduce__(self) -> tuple[Any, ...]:
        # pydantic's adapters can't be pickled, but the type can.
        return reader_for, (self._shape,)

    def __repr__(self) -> str:
        return f"<reads {self.name} from JSON>"


def _problem(problem: Any) -> str:
    where, what = json_pointer(problem["loc"]), str(problem["msg"])
    if problem["type"] == "missing":
        return f"{where} is missing"
    return f"at {where}: {what[:1].lower()}{what[1:]}, got {short_repr(problem['input'])}"


def is_output_type(parser: object) -> bool:
    """Return True for a type to read from JSON."""
    if get_origin(parser) is not None:
        return True
    # Other classes, such as int or Decimal, are called with the text like any function.
    return isinstance(parser, type) and (_has_fields(parser) or _is_typed_dict(parser) or _is_pydantic(parser))


def _is_typed_dict(shape: type[Any]) -> bool:
    # typing.is_typeddict misses those of typing_extensions, which pydantic needs before Python 3.12.
    return hasattr(shape, "__total__") and issubclass(shape, dict)


def _is_pydantic(shape: type) -> bool:
    # Duck-typed, to avoid importing pydantic for callers who do not use it.
    return hasattr(shape, "__pydantic_validator__")


def reader_for(shape: Any) -> TypedReader[Any]:
    """
    Return the cached reader for a type.

    Creating one takes longer than reading a hundred answers.
    """
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
        from pydantic import TypeAdapter  # noqa: PLC0415 - an extra, needed only for typed answers
        from pydantic.errors import PydanticUserError  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra(f"an answer read as {_name(shape)}", "pydantic", "pydantic") from error
    try:
        adapter: Any = TypeAdapter(_for_pydantic(shape, ()))
        # Backends accept a model class as schema, and adapt its JSON schema to their server.
        schema = shape if hasattr(shape, "model_json_schema") else adapter.json_schema()
    except (PydanticUserError, NameError, _UnsupportedType) as error:
        reason = str(error).partition("\n")[0]
        raise TypeError(f"parser must be a type that can be read from JSON, got {_name(shape)}: {reason}") from None
    return TypedReader(shape, adapter, schema)


def _name(shape: object) -> str:
    return shape.__name__ if isinstance(shape, type) and get_origin(shape) is None else str(shape)


# Support for attrs classes and dataclasses.


class _UnsupportedType(Exception):
    """A class that can't be declared to pydantic."""


def _for_pydantic(shape: Any, inside: tuple[Any, ...]) -> Any:
    """
    Return an equivalent type that pydantic supports.

    `inside` holds the enclosing types of a nested one.
    """
    origin = get_origin(shape)
    if origin is Annotated:
        inner, *notes = get_args(shape)
        return Annotated[_for_pydantic(inner, inside), *notes]
    # The arguments of a Literal are values, not types.
    if origin is not None and origin is not Literal:
        return _with_arguments(origin, tuple([_for_pydantic(argument, inside) for argument in get_args(shape)]))
    if isinstance(shape, type) and _has_fields(shape):
        return _with_fields(shape, inside)
    return shape


def _with_arguments(origin: Any, arguments: tuple[Any, ...]) -> Any:
    if origin is UnionType:
        return Union[arguments]  # noqa: UP007 - the only way to build one from a tuple
    return origin[arguments] if arguments else origin


def _has_fields(shape: type[Any]) -> bool:
    return attrs.has(shape) or (dataclasses.is_dataclass(shape) and not _is_pydantic(shape))


def _with_fields(shape: Any, inside: tuple[Any, ...]) -> Any:
    """
    Annotate a class with instructions for pydantic.

    It then validates a dict of the fields, and constructs the class from it.
    """
    from pydantic import ConfigDict, GetPydanticSchema, with_config  # noqa: PLC0415 - an extra
    from pydantic_core import core_schema  # noqa: PLC0415
    from typing_extensions import TypedDict  # noqa: PLC0415 - required by pydantic before 3.12

    if shape in inside:
        raise _UnsupportedType(f"{shape.__name__} is recursive. Make it a pydantic model.")
    hints = get_type_hints(shape, include_extras=True)
    fields: dict[str, Any] = {}
    for field in _fields_of(shape):
        type_of_field = _for_pydantic(hints.get(field.name, Any), (*inside, shape))
        fields[field.key] = type_of_field if field.required else NotRequired[type_of_field]
    # Unknown keys are ignored anyway, so constrained backends may leave them out.
    config = ConfigDict(json_schema_extra={"additionalProperties": False})
    as_dict: Any = with_config(config)(cast("Any", TypedDict)(shape.__name__, fields))

    def make(values: dict[str, Any]) -> Any:
        try:
            return shape(**values)
        except TypeError as error:
            # attrs validators raise TypeError, but pydantic treats only ValueError as a validation error.
            raise ValueError(str(error)) from None

    def read(_source: Any, handler: Callable[[Any], Any]) -> Any:
        return core_schema.no_info_after_validator_function(make, handler(as_dict))

    return Annotated[shape, GetPydanticSchema(read)]


@attrs.frozen
class _Field:
    """A parameter of the constructor of a class."""

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
