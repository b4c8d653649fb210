"""
Read typed values from JSON answers, and build the JSON schema of their types.

This uses pydantic, for its own models, dataclasses, typed dicts, enums, dates and containers of them.
pydantic does not support attrs classes, so they, and dataclasses with one inside, are declared to it as a typed dict
of their fields, and constructed from the validated dict.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import lru_cache
from inspect import CO_VARARGS, isabstract, signature
from types import FunctionType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
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
from sampling._json.lenient import find_json
from sampling._json.partial import read_partial_json
from sampling._json.schemas import close_objects, has_finite_value
from sampling._json.time_limit import TooComplex, count_step, time_limit
from sampling._text import unfenced
from sampling.errors import MissingExtra

__all__ = ["DerivedSchema", "TypedReader", "is_output_type", "plain_parser", "read_bool", "reader_for"]

T = TypeVar("T")


class DerivedSchema(dict[str, Any]):
    """
    A JSON schema that was made from a type.

    A backend may rewrite it for its server, because the type validates the answer. A schema of the caller's own goes
    as it is.
    """


class TypedReader(Generic[T]):
    """
    A parser that reads a JSON answer into a `T`.

    Unless it is not lenient, the JSON may be in a code fence or in prose, and have trailing commas.
    """

    __slots__ = ("_adapter", "_lenient", "_root", "_shape", "schema")

    schema: Any
    """The schema for constrained decoding: the pydantic model itself, or a JSON schema of an object."""

    def __init__(self, shape: Any, adapter: Any, schema: Any, root: str, *, lenient: bool = True) -> None:
        self._shape = shape
        self._adapter = adapter
        self._root = root
        self._lenient = lenient
        self.schema = schema

    def __call__(self, text: str) -> T:
        """Read the JSON in an answer."""
        openings = "[{" if self._root == "array" else "{"
        try:
            return self.read(find_json(text, openings) if self._lenient else unfenced(text))
        except TooComplex as error:
            raise ValueError(str(error)) from None

    def read_partial(self, text: str) -> Any:
        """Return the JSON of an incomplete answer, or None if there is none yet. It is not validated."""
        # The schema of a union of classes is not that of an object, either.
        data: Any = read_partial_json(text, "{" if self._root == "object" else "[{")
        if self._root != "object" and isinstance(data, dict) and data.keys() <= {VALUE}:
            return cast("dict[str, Any]", data).get(VALUE)
        return cast("Any", data)

    @property
    def name(self) -> str:
        """The name of the type, for messages."""
        return _name(self._shape)

    @property
    def shape(self) -> Any:
        """The type."""
        return self._shape

    @property
    def is_lenient(self) -> bool:
        """Whether the JSON may be in prose."""
        return self._lenient

    def strictly(self) -> "TypedReader[T]":
        """Return a reader that accepts only JSON, which may be in a code fence."""
        return TypedReader(self._shape, self._adapter, self.schema, self._root, lenient=False)

    def read(self, text: str) -> T:
        """
        Read JSON.

        Raise a ValueError that says where and what is wrong, or `TooComplex`.
        """
        # pydantic's own parser accepts unlimited nesting and duplicate keys, so check those first.
        try:
            data = read_json(text)
        except ValueError:
            if self._root != "scalar":
                raise
            # A date or the name of a color needs no quotes.
            return finite(self._validated(self._adapter.validate_strings, text.strip()))
        text = text.strip()
        if self._root != "object" and isinstance(data, dict) and data.keys() == {VALUE}:
            data = cast("dict[str, Any]", data)[VALUE]
            text = json.dumps(data)
        return self._validated(self._adapter.validate_json, text, data)

    def _validated(self, validate: Callable[[str], Any], text: str, data: Any = None) -> T:
        from pydantic import ValidationError  # noqa: PLC0415 - an extra, installed if a reader exists

        try:
            with time_limit(_READ_TIMEOUT_S):
                return cast("T", validate(text))
        except ValidationError as error:
            errors = error.errors(include_url=False, include_context=False)
        if _drop_nulls(data, errors):
            # A strict schema makes the model fill in every field, and null stands for the default.
            with suppress(ValidationError), time_limit(_READ_TIMEOUT_S):
                return cast("T", validate(json.dumps(data)))
        raise ValueError(join_problems([_problem(one) for one in errors]))

    def __reduce__(self) -> tuple[Any, ...]:
        # pydantic's adapters can't be pickled, but the type can.
        return reader_for if self._lenient else _strict_reader_for, (self._shape,)

    def __repr__(self) -> str:
        return f"<reads {self.name} from JSON>"


def _strict_reader_for(shape: Any) -> TypedReader[Any]:
    return reader_for(shape).strictly()


def _drop_nulls(data: Any, errors: Sequence[Any]) -> bool:
    """Remove the fields that are null and may not be, and return whether there were any."""
    dropped = False
    for error in errors:
        if error["input"] is not None:
            continue
        *path, last = error["loc"] or ("",)
        node = data
        for step in path:
            inside = isinstance(node, dict) and step in node
            inside = inside or (isinstance(node, list) and isinstance(step, int) and step < len(cast("Any", node)))
            node = cast("Any", node)[step] if inside else None
        fields = cast("dict[object, object]", node) if isinstance(node, dict) else {}
        if fields.get(last, ...) is None:
            del fields[last]
            dropped = True
    return dropped


def _problem(problem: Any) -> str:
    where, what = json_pointer(problem["loc"]), str(problem["msg"])
    if problem["type"] == "missing":
        return f"{where} is missing"
    return f"at {where}: {what[:1].lower()}{what[1:]}, got {short_repr(problem['input'])}"


_READ_AS_JSON = frozenset({dict, frozenset, list, set, tuple, date, datetime, time, timedelta})
"""Types that can't be called with the text of an answer, or would misread it."""

_NEVER_PARSERS = frozenset({Any, bytearray, bytes, memoryview, object, type, type(None)})

_BOOLS = {"true": True, "yes": True, "false": False, "no": False}


def is_output_type(parser: object) -> bool:
    """Return True for a type to read from JSON."""
    if get_origin(parser) is not None:
        return True
    # Other classes, such as int or Decimal, are called with the text like any function.
    return isinstance(parser, type) and (
        parser in _READ_AS_JSON
        or _has_fields(parser)
        or _is_typed_dict(parser)
        or _is_pydantic(parser)
        or issubclass(parser, Enum)
        or _is_named_tuple(cast("Any", parser))
    )


def plain_parser(parser: Any) -> Any:
    """
    Return the parsing function of a parser that is not a type to read from JSON.

    Raise a TypeError if it can't be called with a text, so that no answer is paid for in vain.
    """
    if isinstance(parser, type) and parser in _READERS:
        return _READERS[parser]
    if type(parser) is FunctionType and not hasattr(parser, "__wrapped__"):
        # inspect.signature is slow, and lambdas are often created for each call.
        if not _takes_one(parser):
            raise _uncallable(parser)
    elif isinstance(parser, type):
        _check_callable_class(parser)
    else:
        _check_callable(parser)
    return parser


def _takes_one(function: FunctionType) -> bool:
    code = function.__code__
    required = code.co_argcount - len(function.__defaults__ or ())
    required_keywords = code.co_kwonlyargcount - len(function.__kwdefaults__ or ())
    return required <= 1 and not required_keywords and bool(code.co_argcount or code.co_flags & CO_VARARGS)


@lru_cache(maxsize=256)
def _check_callable_class(parser: type) -> None:
    _check_class(parser)
    _check_callable(parser)


def _check_callable(parser: Any) -> None:
    try:
        described = signature(parser)
    except (TypeError, ValueError):
        # Builtins without a signature, such as int, take a text.
        return
    try:
        described.bind("")
    except TypeError:
        raise _uncallable(parser) from None


def _check_class(parser: type) -> None:
    """Raise for a class that can't be constructed from a text, whatever its signature."""
    if parser in _NEVER_PARSERS or isabstract(parser) or getattr(parser, "_is_protocol", False):
        raise TypeError(f"parser must be a type that can be read from an answer, got {parser.__name__}")
    if hasattr(parser, "__struct_fields__"):
        raise TypeError(
            f"parser must be a type that can be read from an answer, got the msgspec.Struct {parser.__name__}: "
            f"pass msgspec.json.Decoder({parser.__name__}).decode, or make it a dataclass or a pydantic model"
        )


def _uncallable(parser: Any) -> TypeError:
    kind = "class" if isinstance(parser, type) else "function"
    advice = ": make it a dataclass, an attrs class or a pydantic model" if kind == "class" else ""
    return TypeError(
        "parser must be a function of the answer's text, or a type to read from JSON, "
        f"got the {kind} {getattr(parser, '__name__', short_repr(parser))}, which can't be called with a text{advice}"
    )


def finite(value: T) -> T:
    """Return a value, or raise if it is a number that JSON does not have, such as NaN."""
    # math.isfinite would refuse a decimal that is too large for a float.
    if value.is_finite() if isinstance(value, Decimal) else not isinstance(value, float) or math.isfinite(value):
        return value
    raise ValueError("answer with a finite number")


def read_float(text: str) -> float:
    """Read a finite number."""
    return finite(float(text))


def read_decimal(text: str) -> Decimal:
    """Read a finite decimal number."""
    try:
        return finite(Decimal(text))
    except InvalidOperation:
        raise ValueError("answer with a number, and with nothing before or after it") from None


def read_bool(text: str) -> bool:
    """
    Read true or false, in any case, and yes or no.

    `bool(text)` would be True for every text.
    """
    word = text.strip().strip("\"'`*.").lower()
    if word not in _BOOLS:
        raise ValueError("answer with true or false, and with nothing before or after it")
    return _BOOLS[word]


_READERS: dict[Any, Callable[[str], Any]] = {bool: read_bool, float: read_float, Decimal: read_decimal}


def _is_named_tuple(shape: Any) -> bool:
    return hasattr(shape, "_fields") and issubclass(shape, tuple)


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
        adapter: Any = TypeAdapter(_for_pydantic(shape, {}))
        schema: Any = close_objects(adapter.json_schema())
    except (PydanticUserError, NameError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise TypeError(f"parser must be a type that can be read from JSON, got {_name(shape)}: {reason}") from None
    if not has_finite_value(schema):
        raise TypeError(
            f"parser must be a type that can be read from JSON, got {_name(shape)}: "
            "it must contain itself without end, so make the field optional"
        )
    adapter, root = _bounded(adapter), _root_of(schema)
    if root != "object":
        # Constrained decoding makes objects only.
        return TypedReader(shape, adapter, DerivedSchema(_wrapped(schema)), root)
    # Backends accept a model class as schema, and adapt its JSON schema to their server.
    return TypedReader(shape, adapter, shape if hasattr(shape, "model_json_schema") else DerivedSchema(schema), root)


VALUE = "value"
"""The only field of the object around a value that is not an object."""


def _root_of(schema: dict[str, Any]) -> str:
    """Return the kind of value that a schema describes: "object", "array" or "scalar"."""
    node = schema
    if "$ref" in node:
        node = schema.get("$defs", {}).get(str(node["$ref"]).rpartition("/")[2], {})
    kind = node.get("type")
    return kind if kind in {"object", "array"} else "scalar"


def _wrapped(schema: dict[str, Any]) -> dict[str, Any]:
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    outer: dict[str, Any] = {
        "type": "object",
        "properties": {VALUE: inner},
        "required": [VALUE],
        "additionalProperties": False,
    }
    return {**outer, "$defs": schema["$defs"]} if "$defs" in schema else outer


_READ_TIMEOUT_S = 0.25
"""The processor time to validate an answer. It blocks the event loop, and a hostile one could take years."""


def _bounded(adapter: Any) -> Any:
    """
    Return a validator that ends when its time is up.

    Only unions of recursive types can take exponential time, so only they are interrupted.
    """
    core_schema = adapter.core_schema
    if core_schema["type"] != "definitions":
        return adapter
    from pydantic_core import SchemaValidator  # noqa: PLC0415 - an extra

    # Without the prebuilt validators of the classes, which know nothing of the limit.
    return SchemaValidator(_with_steps(core_schema), _use_prebuilt=False)  # pyright: ignore[reportCallIssue]


def _with_steps(node: Any) -> Any:
    """Return a core schema in which every union counts a step."""
    if isinstance(node, list | tuple):
        items = [_with_steps(item) for item in cast("list[Any]", node)]
        return items if isinstance(node, list) else tuple(items)
    if not isinstance(node, dict):
        return node
    fields = {
        name: value if name in _NO_SCHEMAS else _with_steps(value)
        for name, value in cast("dict[str, Any]", node).items()
    }
    if fields.get("type") not in {"union", "tagged-union"}:
        return fields
    reference = {"ref": fields.pop("ref")} if "ref" in fields else {}
    return {
        "type": "function-before",
        "function": {"type": "no-info", "function": _count_step},
        "schema": fields,
        **reference,
    }


_NO_SCHEMAS = frozenset({"cls", "config", "default", "function", "metadata", "ref", "serialization"})


def _count_step(value: Any) -> Any:
    count_step()
    return value


def _name(shape: object) -> str:
    plain = _without_annotations(shape) if "Annotated" in str(shape) else shape
    return plain.__name__ if isinstance(plain, type) and get_origin(plain) is None else str(plain)


def _without_annotations(shape: object) -> object:
    """Return a type without what `Annotated` adds, which may be functions, whose texts have addresses."""

    def annotated() -> None: ...

    annotated.__annotations__ = {"shape": shape}
    with suppress(NameError, TypeError):
        return get_type_hints(annotated)["shape"]
    return shape


# Support for attrs classes and dataclasses.


def _for_pydantic(shape: Any, inside: dict[Any, type]) -> Any:
    """
    Return an equivalent type that pydantic supports.

    That is the type itself, unless there is an attrs class in it. `inside` holds the enclosing types of a nested one.
    """
    if not _has_attrs(shape, set()):
        return shape
    origin = get_origin(shape)
    if origin is Annotated:
        inner, *notes = get_args(shape)
        return Annotated[_for_pydantic(inner, inside), *notes]
    if isinstance(origin or shape, type) and _has_fields(origin or shape):
        return _with_fields(shape, inside)
    return _with_arguments(origin, tuple([_for_pydantic(argument, inside) for argument in get_args(shape)]))


def _has_attrs(shape: Any, seen: set[Any]) -> bool:
    """Return whether there is an attrs class in a type."""
    origin = get_origin(shape)
    if origin is Literal or not _is_hashable(shape) or shape in seen:
        # The arguments of a Literal are values, not types.
        return False
    seen.add(shape)
    if any(_has_attrs(argument, seen) for argument in get_args(shape)):
        return True
    kind = origin or shape
    if not isinstance(kind, type) or not _has_fields(kind):
        return False
    return attrs.has(kind) or any(_has_attrs(hint, seen) for hint in _hints(kind).values())


def _with_arguments(origin: Any, arguments: tuple[Any, ...]) -> Any:
    if origin is UnionType:
        return Union[arguments]  # noqa: UP007 - the only way to build one from a tuple
    return origin[arguments] if arguments else origin


def _has_fields(shape: type[Any]) -> bool:
    return attrs.has(shape) or (dataclasses.is_dataclass(shape) and not _is_pydantic(shape))


def _hints(shape: Any) -> dict[str, Any]:
    """Return the types of the fields of a class, or of a generic class with its arguments."""
    origin = get_origin(shape) or shape
    hints = get_type_hints(origin, include_extras=True)
    parameters = dict(zip(getattr(origin, "__parameters__", ()), get_args(shape), strict=False))
    return {name: _substituted(hint, parameters) for name, hint in hints.items()} if parameters else hints


def _substituted(hint: Any, parameters: dict[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return parameters.get(hint, hint)
    own = getattr(hint, "__parameters__", ())
    return hint[tuple([parameters.get(one, one) for one in own])] if own and get_origin(hint) is not None else hint


def _with_fields(shape: Any, inside: dict[Any, type]) -> Any:
    """
    Return a pydantic class that stands for another class.

    It validates a dict of the fields, and constructs the other class from it.
    """
    from pydantic import ConfigDict, with_config  # noqa: PLC0415 - an extra
    from typing_extensions import TypedDict  # noqa: PLC0415 - required by pydantic before 3.12

    if shape in inside:
        return inside[shape]
    made = get_origin(shape) or shape
    stand_in: Any = type(
        made.__name__, (_StandIn,), {"made": staticmethod(made), "building": False, "recursive": False}
    )
    hints = _hints(shape)
    fields: dict[str, Any] = {}
    for field in _fields_of(made):
        type_of_field = _for_pydantic(hints.get(field.name, Any), {**inside, shape: stand_in})
        fields[field.key] = type_of_field if field.required else NotRequired[type_of_field]
    # Unknown keys are ignored anyway, so constrained backends may leave them out.
    config = ConfigDict(json_schema_extra={"additionalProperties": False})
    stand_in.as_dict = with_config(config)(cast("Any", TypedDict)(made.__name__, fields))
    return stand_in


class _StandIn:
    """The base of classes that pydantic validates instead of those it does not support."""

    made: ClassVar[Callable[..., Any]]
    as_dict: ClassVar[Any]
    building: ClassVar[bool]
    recursive: ClassVar[bool]
    """True if the class was found inside of itself."""

    @classmethod
    def make(cls, values: dict[str, Any]) -> Any:
        try:
            return cls.made(**values)
        except TypeError as error:
            # attrs validators raise TypeError, but pydantic treats only ValueError as a validation error.
            raise ValueError(str(error)) from None

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema  # noqa: PLC0415 - an extra

        ref = f"{cls.__name__}:{id(cls)}"
        if cls.building:
            cls.recursive = True
            return core_schema.definition_reference_schema(ref)
        cls.building = True
        try:
            fields = handler.generate_schema(cls.as_dict)
        finally:
            cls.building = False
        if not cls.recursive:
            return core_schema.no_info_after_validator_function(cls.make, fields)
        whole = core_schema.no_info_after_validator_function(cls.make, fields, ref=ref)
        return core_schema.definitions_schema(core_schema.definition_reference_schema(ref), [whole])


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
