"""Look into objects and functions: what they consist of, and what they are known by."""

import hashlib
import io
import re
import struct
import sys
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import PurePath
from types import FunctionType, ModuleType
from typing import Any, Final, cast

from sampling.fanout.journal._code import short_digest
from sampling.fanout.journal._surroundings import is_library, is_own_code, mangled, module_prefix, names_in

__all__ = [
    "array_digest",
    "attributes_of",
    "cell_content",
    "file_digest",
    "globals_of",
    "is_cache",
    "is_constant",
    "is_generated",
    "is_getter",
    "known_state",
    "name_of",
    "pydantic_schema",
    "setters_in",
    "without_order",
]

_MAX_FILE_BYTES: Final = 100_000_000
_UNCHANGEABLE: Final = (str, int, float, bytes, re.Pattern)
"""Types of values that stay as they are."""


def pydantic_schema(kind: type[Any]) -> Any:
    """Return the schema of a pydantic model, or None for any other class, or one that has no schema."""
    schema: Any = getattr(kind, "model_json_schema", None)
    try:
        return schema() if callable(schema) else None
    except Exception:  # noqa: BLE001 - `BaseModel` itself has none, and a field of any class may have none
        return None


def array_digest(value: Any) -> dict[str, Any] | None:
    """Describe an array of numbers or texts, such as NumPy's. Return None for anything else."""
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is None or not isinstance(shape, tuple) or not callable(getattr(value, "tobytes", None)):
        return None
    # The bytes of an array of objects are addresses.
    if getattr(dtype, "hasobject", True):
        return None
    described = {"dtype": str(dtype), "shape": str(cast("tuple[int, ...]", shape))}
    return {**described, "sha256": short_digest(value.tobytes())}


def attributes_of(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object, or None if it has state that Python can't see."""
    kind: type[Any] = value.__class__
    slots = [(one, name) for one in kind.__mro__ for name in _slots(one)]
    pointers = len(slots) + (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0)
    if kind.__basicsize__ > object.__basicsize__ + pointers * _POINTER_BYTES or kind.__itemsize__:
        return None
    names = [mangled(name, one) for one, name in slots]
    return {**{name: getattr(value, name) for name in names if hasattr(value, name)}, **getattr(value, "__dict__", {})}


_POINTER_BYTES: Final = struct.calcsize("P")


def without_order(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the options of a validator of attrs that come from a set: their order differs between processes."""
    is_of_set = isinstance(attributes.get("_original_options"), AbstractSet)
    return {name: value for name, value in attributes.items() if not (is_of_set and name == "options")}


def _slots(kind: type[Any]) -> list[str]:
    slots = vars(kind).get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in {"__weakref__", "__dict__"}]


def globals_of(function: FunctionType, *, in_lower_case: bool) -> Iterator[tuple[str, Any]]:
    """Yield the globals that a function reads: constants, and other functions of the same module."""
    if is_library(function.__module__):
        return
    for name in sorted(names_in(function.__code__)):
        value = function.__globals__.get(name)
        if isinstance(value, FunctionType):
            if value.__module__ == function.__module__:
                yield name, value
        elif (in_lower_case or name.isupper()) and value is not None and is_constant(name, value):
            yield name, value


def is_constant(name: str, value: object) -> bool:
    """Return whether a name of a module or a class is one that code reads and does not change."""
    # Names in lower case may hold state, such as a cache, unless their values can't change.
    if name.isupper():
        return not callable(value) and not isinstance(value, ModuleType)
    return isinstance(value, _UNCHANGEABLE)


def is_generated(method: Any) -> bool:
    """Return whether attrs or dataclasses wrote a method, or Python did. It follows from the fields."""
    function = getattr(method, "__func__", method)
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    # Dataclasses wrap some of theirs in functions of Python, and which ones depends on its version.
    is_wrapped = is_library(function.__globals__.get("__name__"))
    return is_wrapped or code.co_filename.startswith("<attrs") or code.co_filename == "<string>"


def file_digest(path: PurePath) -> str | None:
    """Return a digest of a file that a requirement may read, or None if there is none."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a PurePath can't open itself
            digest = hashlib.sha256()
            read = 0
            while (chunk := file.read(1 << 20)) and read < _MAX_FILE_BYTES:
                digest.update(chunk)
                read += len(chunk)
            return digest.hexdigest()[:16]
    except OSError:
        return None


def is_cache(function: Any) -> bool:
    """Return whether a function is one of `functools.cache` or `lru_cache`."""
    return type(function).__module__ == "functools" and hasattr(function, "__wrapped__")


def is_getter(function: Any) -> bool:
    """Return whether a function is an `itemgetter`, an `attrgetter` or a `methodcaller`, which can be copied."""
    return type(function).__module__ == "operator"


def known_state(value: Any) -> dict[str, Any] | None:
    """Return what can change an answer of an object whose state Python can't see, or None if that is not known."""
    if isinstance(value, BaseException):
        # A call adds notes to the errors that it raises, also to one that a module keeps.
        return {"args": value.args, **{name: one for name, one in vars(value).items() if name != "__notes__"}}
    is_only_written = isinstance(value, io.IOBase) and not value.readable()
    return {} if is_only_written or _is_of_package(value) else None


def _is_of_package(value: Any) -> bool:
    """Return whether an object is a function of an installed package, such as one in C. It is known by its name."""
    name, module = getattr(value, "__qualname__", None), getattr(value, "__module__", None)
    if not callable(value) or not isinstance(name, str) or not isinstance(module, str) or is_own_code(module):
        return False
    return getattr(sys.modules.get(module), name, None) is value


def setters_in(members: Mapping[str, Any]) -> Iterator[tuple[str, FunctionType]]:
    """Yield the functions of properties that set and delete their values."""
    for name, member in members.items():
        functions = {"set": member.fset, "delete": member.fdel} if isinstance(member, property) else {}
        yield from ((f"{kind} {name}", one) for kind, one in functions.items() if isinstance(one, FunctionType))


def cell_content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        # The cell is empty until its variable is assigned.
        return None


def name_of(thing: Any) -> str:
    """Return the qualified name of a class or function, or that of the class of an object."""
    name = getattr(thing, "__qualname__", None) or type(thing).__qualname__
    module = getattr(thing, "__module__", None) or type(thing).__module__
    return f"{module_prefix(module)}{name}"
