"""
Describe settings, functions and objects as JSON values, to compare them between processes.

A description is the same in every process: it has no address, and no order that depends on hashing.
"""

import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import inspect
import os
import re
import sys
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    FunctionType,
    GenericAlias,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    UnionType,
    WrapperDescriptorType,
)
from typing import Any, Final, cast

import attrs

from sampling._redaction import looks_like_a_key
from sampling._schemas.output_types import TypedReader
from sampling._serialization.messages import canonical
from sampling.backends.layers._identity import identity_of
from sampling.fanout.journal._code import (
    CODE_KEY,
    digest_of_code,
    digest_of_code_with_docstrings,
    digest_of_source,
    short_digest,
)
from sampling.fanout.journal._inspection import (
    array_digest,
    attributes_of,
    cell_content,
    file_digest,
    globals_of,
    is_cache,
    is_constant,
    is_generated,
    is_getter,
    known_state,
    name_of,
    pydantic_schema,
    setters_in,
    without_order,
)
from sampling.fanout.journal._surroundings import (
    ModuleSource,
    attributes_changed_by,
    attributes_set_by,
    changes_in,
    globals_changed_by,
    is_library,
    is_own_code,
    library_name,
    mangled,
    module_prefix,
    names_in,
    surroundings_of,
    variables_changed_by,
)
from sampling.fanout.journal._types import (
    annotations_in,
    classes_in,
    field_settings,
    has_fields,
    own_hints,
    settings_of_class,
    type_hints,
    type_name,
    validators_of,
)
from sampling.requirements import Requirement, as_requirements
from sampling.strategy import BaseSamplingStrategy
from sampling.tools import Tool

__all__ = ["CHANGED", "FORMAT", "Describer", "secret_digest"]

FORMAT: Final = 7
"""
The number of this kind of description.

2 leaves out constants of classes, and those of modules in lower case. 3 leaves out the surroundings of functions,
validators of pydantic models, containers of classes and private settings, and shows secrets. 4 leaves out the classes
of enum members and of containers, cached methods and inner classes, and has what a check changes itself. 5 leaves out
what decides the values of fields, methods that are overridden, attributes of functions, the types of keys and the
requirements of nested strategies, and has the addresses of functions in types, and the paths of files. 6 leaves out
how objects of a class are compared, other settings of fields than their values, the classes of generic types, setters,
what a `try` covers, and docstrings and annotations that code reads, and has all other docstrings. It does not know what
names of packages stand for, and has functions of a module in each other. It also leaves out objects of packages in
classes, variables of a module that a function has a name of its own for, plain types of fields, which fields a
validator is for, metadata of fields, the order of the properties in a schema, objects that can `generate` something but
are no backends, what objects of the program have beyond a pattern or a schema, and the classes of dates and numbers.
"""

# The first formats that have these. What else is new in each is said above.
_CONSTANTS: Final = 3
_SURROUNDINGS: Final = 4
_CLASSES: Final = 5
_FIELDS: Final = 6
_DOCSTRINGS: Final = 7
_DEEPEST: Final = 24
_MAX_PARTS: Final = 500_000
"""The largest number of parts of a value. Objects that refer to each other would have any number of them."""

_MAX_UNSEEN: Final = 20
"""The largest number of places in a value that can't be compared. If there are more, the value is named instead."""

_MAX_INT_BITS: Final = 900
"""Integers of more than 300 digits are not read back."""

_ONCE_MAX_INT_BITS: Final = 4_000
_LONGEST: Final = 10_000
"""The largest number of characters of a text, or of what describes a container. More have a digest: a fingerprint with
too many brackets is not read back, also if they are in texts."""

_CODE_DIGEST: Final = re.compile(rf'"{re.escape(CODE_KEY)}":"[0-9a-f]+",?')

_TEXTUAL: Final = (
    dt.date,
    dt.time,
    dt.timedelta,
    dt.tzinfo,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
    complex,
    range,
    slice,
)
"""Types whose `repr` shows everything."""

_PLAIN: Final = frozenset({str, int, float})

_INERT: Final = (
    *("_thread", "threading", "logging", "structlog", "contextvars", "_contextvars", "weakref", "_weakref"),
    *("anyio", "trio", "asyncio", "_asyncio", "concurrent", "itertools", "rich", "tqdm", "loguru", "_json"),
)
"""Packages whose objects can't change an answer."""

_ALSO_INERT: Final = ("prometheus_client", "opentelemetry")
"""Those that earlier formats looked into. They count, and have the time at which they were made."""

_SECRET_NAME: Final = re.compile(r"(?i)api_?key|secret|passw|token$|authorization|credential|private_?key")

_BUILTIN_METHODS: Final = (MethodDescriptorType, WrapperDescriptorType, MethodWrapperType, ClassMethodDescriptorType)
"""Methods such as `str.strip`."""

_CONTAINERS: Final = (Mapping, list, tuple, AbstractSet)
CHANGED: Final = "changed by the function itself"
"""The description of a variable that is no setting, such as a counter."""

_READ_DOCSTRINGS: Final = frozenset({"__doc__", "getdoc"})
_READ_ANNOTATIONS: Final = frozenset({"__annotations__", "get_annotations", "get_type_hints", "signature"})
_SETTINGS: Final = ("loop_budget", "concurrency_budget", "deterministic", "check_timeout_s", "max_context_chars")


class _TooManyPartsError(Exception):
    """Raised to give up a value."""


class Describer:
    """Describes values, and collects the places of those that it can't inspect."""

    def __init__(self, as_of: int = FORMAT) -> None:
        """Describe values as this format did."""
        self._as_of = as_of
        self.unseen: list[str] = []
        """The places and types of objects whose changes the description does not show."""

        self._used: dict[str, Any] = {}
        """What functions and classes use of the program around them, by its place."""

        self._called: set[str] = {"__call__"}
        """The names of methods that the functions so far may call."""

        self._documented: dict[str, Any] = {}
        """The functions, classes and modules of the program so far, by name."""

        self._reads: set[str] = set()
        """The names of texts about functions and classes that code of the program reads."""

        self._around: list[int] = []
        self._parts = 0
        """The number of parts so far of the outermost value."""

        self._path: list[str] = []

    @contextmanager
    def at(self, place: str) -> Generator[None]:
        """Describe something that is at this place."""
        self._path.append(place)
        yield
        self._path.pop()

    def describe(self, value: Any) -> Any:
        """Return JSON values that describe a value."""
        if value is None or isinstance(value, bool):
            return value
        if type(value) in _PLAIN:
            return self._plain(value)
        if id(value) in self._around:
            return {"class": name_of(type(value)), "around": True}
        if len(self._around) >= _DEEPEST:
            return self._not_seen(value)
        self._parts = self._parts + 1 if self._around else 1
        if self._parts > _MAX_PARTS:
            raise _TooManyPartsError
        self._around.append(id(value))
        before = len(self.unseen)
        try:
            described = self._guarded(self._container, value)
        finally:
            self._around.pop()
        if not self._around and len(self.unseen) - before > _MAX_UNSEEN:
            del self.unseen[before:]
            self._not_seen(value)
        return described

    def used(self) -> dict[str, Any]:
        """Describe what the functions and classes so far use of the program around them, each once."""
        described: dict[str, Any] = {}
        while missing := self._used.keys() - described.keys():
            # Functions first: which attributes of an object are its state depends on all that they call.
            functions = {place for place in missing if isinstance(self._used[place], FunctionType)}
            for place in sorted(functions or missing):
                described[place] = self._part(place, self._used[place])
        return {**described, **self._texts_read()}

    def _texts_read(self) -> dict[str, Any]:
        """Describe docstrings and annotations, if code of the program reads any. It may put them into a prompt."""
        found: dict[str, Any] = {}
        if self._reads & _READ_DOCSTRINGS:
            found["docstrings"] = self._of_each_documented(inspect.getdoc)
        if self._reads & _READ_ANNOTATIONS:
            found["annotations"] = self._of_each_documented(self._annotations)
        return found

    def _of_each_documented(self, describe: Callable[[Any], Any]) -> dict[str, Any]:
        described = {name: self._guarded(describe, thing) for name, thing in sorted(self._documented.items())}
        return {name: self.describe(text) for name, text in described.items() if text}

    def _annotations(self, thing: Any) -> dict[str, Any]:
        return {name: self._type(kind) for name, kind in own_hints(thing).items()}

    def _text(self, text: str) -> Any:
        is_long = len(text) > _LONGEST and self._as_of >= _DOCSTRINGS
        return secret_digest(text) if is_long or self._is_secret(text) else text

    def _integer(self, value: int) -> Any:
        most = _MAX_INT_BITS if self._as_of >= _DOCSTRINGS else _ONCE_MAX_INT_BITS
        return value if value.bit_length() <= most else {"class": "int", "hex": hex(value)}

    def _is_secret(self, text: str) -> bool:
        is_named = bool(self._path) and _SECRET_NAME.search(self._path[-1]) is not None
        return self._as_of >= _SURROUNDINGS and (is_named or looks_like_a_key(text))

    def _guarded(self, describe: Callable[[Any], Any], value: Any) -> Any:
        """Describe a value. One that raises can't be seen into, and neither can one that has too many parts."""
        depth = len(self._path)
        try:
            return describe(value)
        except Exception as error:
            # Objects are the user's, and may raise anything.
            if isinstance(error, _TooManyPartsError) and len(self._around) > 1:
                raise
            del self._path[depth:]
            return self._not_seen(value)

    def _container(self, value: Any) -> Any:
        self._use_class_of(value)
        if isinstance(value, enum.Enum):
            return {"class": name_of(type(value)), "member": value.name}
        if isinstance(value, str | int | float):
            return self._plain(value)
        if self._as_of >= _CLASSES and type(value).__module__ == "weakref":
            return {"class": name_of(type(value))}
        if isinstance(value, (*_CONTAINERS, deque)):
            return self._short(value, self._members(value))
        return self._textual(value)

    def _plain(self, value: float | str) -> Any:
        """Describe a text or a number, also one of a subclass."""
        if isinstance(value, float):
            return repr(value)
        # Earlier formats took those of subclasses as they are.
        is_safe = type(value) in _PLAIN or self._as_of >= _DOCSTRINGS
        if isinstance(value, str):
            return self._text(str(value)) if is_safe else str(value)
        return self._integer(int(value)) if is_safe else int(value)

    def _short(self, container: Any, described: Any) -> Any:
        """Return the description of a container, or a digest of a long one, such as a table of words."""
        if self._as_of < _DOCSTRINGS or len(text := canonical(described)) <= _LONGEST:
            return described
        # Code has a digest of its own, because it is not compared between versions of Python.
        without_code = _CODE_DIGEST.sub("", text)
        code = {} if without_code == text else {CODE_KEY: short_digest(text.encode())}
        return {"class": _class_name(container), "sha256": short_digest(without_code.encode()), **code}

    def _members(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            # The environment differs between machines, and may hold keys.
            items = cast("Iterable[tuple[Any, Any]]", value.items())
            factory = getattr(cast("object", value), "default_factory", None) if self._as_of >= _FIELDS else None
            missing = {} if factory is None else {"(missing)": self._part("missing", factory)}
            return self._not_seen(value) if value is os.environ else {**self._mapping(list(items)), **missing}
        if isinstance(value, AbstractSet):
            members = [self.describe(item) for item in cast("Iterable[Any]", value)]
            return {"class": _class_name(value), "members": sorted(members, key=canonical)}
        if isinstance(value, deque) and self._as_of < _CLASSES:
            return self._not_seen(value)
        return [self._part(str(place), item) for place, item in enumerate(cast("Iterable[Any]", value))]

    def _textual(self, value: Any) -> Any:
        if isinstance(value, bytes | bytearray):
            return {"class": name_of(type(value)), "sha256": short_digest(value)}
        if isinstance(value, _TEXTUAL):
            return self._of_text(value)
        if type(value).__module__ == "typing" or self._is_extension(value):
            return self._of_typing(value)
        if isinstance(value, GenericAlias | UnionType) and self._as_of >= _CLASSES:
            self._use_types([value])
            return {"class": name_of(type(value)), "value": self._type(value)}
        return self._object(value)

    def _of_text(self, value: Any) -> dict[str, Any]:
        """Describe a value whose `repr` shows everything, except for a timezone of the program in it."""
        zone: Any = getattr(value, "tzinfo", None) if self._as_of >= _DOCSTRINGS else None
        if zone is not None and is_own_code(type(zone).__module__):
            return {**self._of_text(value.replace(tzinfo=None)), "timezone": self._part("timezone", zone)}
        if self._as_of >= _DOCSTRINGS and isinstance(value, dt.tzinfo) and is_own_code(type(value).__module__):
            return cast("dict[str, Any]", self._instance(value))
        return {"class": _class_name(value), "value": repr(value)}

    def _is_extension(self, value: Any) -> bool:
        return self._as_of >= _FIELDS and type(value).__module__ == "typing_extensions"

    def _of_typing(self, value: Any) -> dict[str, Any]:
        if self._as_of >= _FIELDS:
            self._use_types([value])
            if isinstance(value, type):
                # A protocol or a typed dict: a class with a metaclass of `typing`.
                return {"class": _class_name(value), "value": repr(value), **self._object(value)}
        return {"class": _class_name(value), "value": self._type(value)}

    def _type(self, kind: Any) -> Any:
        """Describe a type, with what `Annotated` adds to it."""
        added = annotations_in(kind) if self._as_of >= _FIELDS else []
        if not added:
            return _type_name(kind)
        return {"annotated": type_name(kind, name_of), "with": self._part("with", added)}

    def _use_class_of(self, value: Any) -> None:
        """Note the class of a value that is described by its content, and its attributes."""
        kind: type[Any] = value.__class__
        if self._as_of < _CLASSES or not is_own_code(kind.__module__):
            return
        if not _is_described_by_content(kind) and not (self._as_of >= _DOCSTRINGS and _is_textual(kind)):
            return
        self._use_class(kind)
        state = attributes_changed_by(kind, self._called)
        attributes = {name: one for name, one in getattr(value, "__dict__", {}).items() if name not in state}
        if attributes and not isinstance(value, enum.Enum):
            self._used.setdefault(f"{'.'.join(self._path)} attributes", attributes)

    def _mapping(self, pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
        texts = [self._key(key) for key, _ in pairs]
        if len(set(texts)) == len(texts):
            described = {text: self._part(text, item) for text, (_, item) in zip(texts, pairs, strict=True)}
            others = [key for key, _ in pairs if not isinstance(key, str)] if self._as_of >= _FIELDS else []
            # The text of a key does not show its type.
            keys = {"(keys)": sorted(map(self.describe, others), key=canonical)} if others else {}
            # A model fills in the properties of a schema in their order.
            is_ordered = self._as_of >= _DOCSTRINGS and self._path[-1:] == ["properties"]
            return {**described, **keys, **({"(order)": texts} if is_ordered else {})}
        # Several keys have the same text, such as 1 and "1".
        return {"pairs": [[self.describe(key), self._part(str(key), item)] for key, item in pairs]}

    def _key(self, key: Any) -> str:
        """Return a text of a key that is the same in every process."""
        return str(key) if self._as_of < _FIELDS or _has_stable_text(key) else canonical(self.describe(key))

    def _part(self, place: str, value: Any) -> Any:
        with self.at(place):
            return self.describe(value)

    def _object(self, value: Any) -> Any:
        special = self._special(value)
        if special is not None:
            return special
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, functools.partial | FunctionType | MethodType | BuiltinFunctionType):
            return self.function(value)
        if self._as_of >= _CLASSES and (isinstance(value, _BUILTIN_METHODS) or is_cache(value) or is_getter(value)):
            return self.function(value)
        inert = _INERT if self._as_of < _DOCSTRINGS else (*_INERT, *_ALSO_INERT)
        if type(value).__module__.partition(".")[0] in inert:
            return {"class": name_of(type(value))}
        described = self._instance(value)
        # Earlier versions described a callable object by its name alone.
        return {"name": name_of(value), **described} if callable(value) else described

    def _special(self, value: Any) -> Any:  # noqa: PLR0911 - one for each kind
        """Describe an object of a known kind. Return None for any other."""
        if isinstance(value, Requirement):
            return self.requirement(value)
        if isinstance(value, Tool):
            function = {} if value.function is None else {"function": self._part("function", value.function)}
            schema = self._part("schema", value.schema)
            return {"name": value.name, "description": value.description, "schema": schema, **function}
        if isinstance(value, BaseSamplingStrategy):
            return self._nested_strategy(value)
        if isinstance(value, PurePath):
            content = file_digest(value)
            # A file may be moved.
            path = {} if content is not None and self._as_of >= _FIELDS else {"path": str(value)}
            return {"class": "pathlib.Path", **path, "sha256": content}
        if isinstance(value, ModuleType):
            return {"class": "module", "name": value.__name__}
        if isinstance(value, ModuleSource):
            is_code = self._as_of >= _DOCSTRINGS
            return {CODE_KEY: digest_of_source(value.content)} if is_code else self.describe(value.content)
        return self._pattern(value) or self._special_by_methods(value)

    def _pattern(self, value: Any) -> dict[str, Any] | None:
        """Describe a compiled regex, of whatever library. Return None for anything else."""
        pattern, flags = getattr(value, "pattern", None), getattr(value, "flags", None)
        if not isinstance(pattern, str | bytes) or not isinstance(flags, int) or self._is_of_program(value):
            return None
        return {"class": name_of(type(value)), "pattern": self.describe(pattern), "flags": int(flags)}

    def _is_of_program(self, value: Any) -> bool:
        """Return whether a class or an object is the program's, so that it may have more than those of a library."""
        module = (value if isinstance(value, type) else type(value)).__module__
        # Types that are written in C may name a module that there is not.
        return self._as_of >= _DOCSTRINGS and module in sys.modules and is_own_code(module)

    def _special_by_methods(self, value: Any) -> Any:  # noqa: PLR0911 - one for each kind
        """Describe an object of a library by the methods of its kind."""
        if isinstance(value, type):
            return self._model(value)
        name = name_of(type(value))
        if _is_reader(value) and self._as_of >= _FIELDS:
            return self._reader(value)
        if isinstance(given := getattr(value, "fingerprint", None), str) or callable(given):
            return {"class": name, "fingerprint": str(given() if callable(given) else given)}
        if (array := array_digest(value)) is not None:
            return {"class": name, **array}
        if callable(generate := getattr(value, "generate", None)) and self._is_of_backend(generate):
            return {"class": name, "model": identity_of(value)}
        if self._is_of_program(value):
            return None
        if callable(getattr(value, "iter_errors", None)) and hasattr(value, "schema"):
            return {"class": name, "schema": self._part("schema", value.schema)}
        return self._adapter(value)

    def _is_of_backend(self, generate: Any) -> bool:
        """Return whether a method is that of a backend. A template may have one of this name, too."""
        return self._as_of < _DOCSTRINGS or inspect.iscoroutinefunction(inspect.unwrap(generate))

    def _model(self, kind: type[Any]) -> Any:
        """Describe a pydantic model. Return None for any other class."""
        schema = pydantic_schema(kind)
        if schema is None or self._as_of < _SURROUNDINGS:
            return None if schema is None else self.describe(schema)
        fields: Mapping[str, Any] = getattr(kind, "model_fields", {})
        hints = {name: field.annotation for name, field in fields.items()}
        self._use_types(hints.values())
        return {**self.describe(schema), **self._fields(kind, hints), **self._methods(kind)}

    def _reader(self, reader: TypedReader[Any]) -> dict[str, Any]:
        """Describe a parser of ours, without its validator, which is made from the type."""
        reads, schema = self._part("reads", reader.shape), self._part("schema", reader.schema)
        lenient = {} if reader.is_lenient else {"lenient": False}
        return {"class": name_of(TypedReader), "reads": reads, "schema": schema, **lenient}

    def _adapter(self, value: Any) -> Any:
        """Describe an adapter of pydantic. Return None for any other object."""
        schema: Any = getattr(value, "json_schema", None)
        if not callable(getattr(value, "validate_python", None)) or not callable(schema):
            return None
        kind: Any = getattr(value, "_type", None) if self._as_of >= _FIELDS else None
        read = {} if kind is None else {"type": self._part("type", kind)}
        settings: Any = getattr(value, "_config", None) if self._as_of >= _DOCSTRINGS else None
        config = {"config": self._part("config", settings)} if settings else {}
        return {"class": name_of(type(value)), "schema": self.describe(schema()), **read, **config}

    # Objects.

    def _instance(self, value: Any) -> Any:
        """Describe an object by its class and its attributes."""
        kind: type[Any] = value.__class__
        attributes = attributes_of(value)
        if attributes is None and self._as_of >= _DOCSTRINGS:
            attributes = known_state(value)
        if attributes is None:
            return self._not_seen(value)
        described: dict[str, Any] = {"class": name_of(kind)}
        # What a check changes itself is its state, which differs from call to call.
        state = attributes_changed_by(kind, self._called) if self._as_of >= _CLASSES else set[str]()
        if self._as_of >= _DOCSTRINGS:
            attributes = without_order(attributes)
        for name, attribute in sorted(attributes.items()):
            if name not in state and not self._is_computed(kind, name):
                described[f".{name}"] = self._part(name, attribute)
        return {**described, **self._methods(kind)}

    def _is_computed(self, kind: type[Any], name: str) -> bool:
        """Return whether an attribute is the value of a cached property, which is there after its first use."""
        is_cached = isinstance(getattr(kind, name, None), functools.cached_property)
        return self._as_of >= _FIELDS and is_cached

    def _class(self, kind: type[Any]) -> dict[str, Any]:
        described: dict[str, Any] = {"name": name_of(kind)}
        metaclass: type[Any] = type(kind)
        fields: Any = attrs.fields(kind) if attrs.has(kind) else ()
        if dataclasses.is_dataclass(kind):
            fields = dataclasses.fields(kind)
        if fields:
            described["fields"] = [[field.name, self._type(field.type)] for field in fields]
            self._use_types(field.type for field in fields)
        if issubclass(kind, enum.Enum):
            described["members"] = [[member.name, self.describe(member.value)] for member in kind]
        if self._as_of >= _CLASSES:
            self._use_class(metaclass)
            described.update(_fields_of_tuple(kind))
        if has_fields(kind) and not is_library(kind.__module__):
            described.update(self._fields(kind, type_hints(kind)))
        return {**described, **self._methods(kind)}

    def _fields(self, kind: type[Any], hints: Mapping[str, Any]) -> dict[str, Any]:
        """Describe what decides the values of fields, apart from plain types."""
        if self._as_of < _FIELDS:
            return {}
        self._use_types(hints.values())
        is_closer = self._as_of >= _DOCSTRINGS
        settings: dict[str, dict[str, Any]] = field_settings(kind, with_flags=is_closer)
        annotated = {name: {"type": hint} for name, hint in hints.items() if annotations_in(hint)}
        if is_closer:
            # The schema of a type does not tell a date in the past from one in the future, for example.
            annotated = {**{name: {"type": _name_of_type(hint)} for name, hint in hints.items()}, **annotated}
        named = {name: {**annotated.get(name, {}), **settings.get(name, {})} for name in {**settings, **annotated}}
        of_class = {"traits": self._part("traits", settings_of_class(kind))} if is_closer else {}
        if is_closer and (validators := validators_of(kind)):
            of_class["validators"] = self._part("validators", validators)
        return {**({"settings": self._part("settings", named)} if named else {}), **of_class}

    def _methods(self, kind: type[Any]) -> dict[str, Any]:
        """Describe the code of a class, as far as it is the user's."""
        for one in kind.__mro__:
            self._use_inner_classes(one)
            if is_own_code(one.__module__):
                self._document(one)
        given = {
            name: member
            for one in reversed(kind.__mro__)
            if not is_library(one.__module__)
            for name, member in vars(one).items()
        }
        members = {name: self._plain_method(member) for name, member in given.items()}
        methods = {
            name: self._part(name, member)
            for name, member in members.items()
            if isinstance(member, FunctionType) and not is_generated(member)
        }
        constants = {
            name: self._part(name, self._member(member))
            for name, member in sorted(members.items())
            if not name.startswith("__") and self._is_constant_of(kind, name, member)
        }
        methods |= {name: self._part(name, member) for name, member in self._overridden(kind)}
        if self._as_of >= _DOCSTRINGS:
            methods |= {name: self._part(name, member) for name, member in setters_in(given)}
        return {**({"methods": methods} if methods else {}), **({"constants": constants} if constants else {})}

    def _overridden(self, kind: type[Any]) -> Iterator[tuple[str, FunctionType]]:
        """Yield the methods that a class overrides, and may call with `super()`."""
        own = [one for one in kind.__mro__ if not is_library(one.__module__)] if self._as_of >= _FIELDS else []
        seen: set[str] = set()
        for one in own:
            for name, given in vars(one).items():
                member = self._plain_method(given)
                if name in seen and isinstance(member, FunctionType) and not is_generated(member):
                    yield f"{name_of(one)}.{name}", member
            seen |= vars(one).keys()

    def _is_constant_of(self, kind: type[Any], name: str, member: Any) -> bool:
        if self._as_of < _CONSTANTS:
            return False
        if is_constant(name, member) or self._as_of < _SURROUNDINGS or issubclass(kind, enum.Enum):
            return is_constant(name, member) and not self._is_state(kind, name)
        is_own = is_own_code(type(member).__module__)
        if self._as_of < _CLASSES:
            is_own = is_own and not hasattr(member, "__get__")
        elif type(member).__module__ == "functools":
            # A cached property, or a method that is cached or has some of its arguments.
            return True
        is_plain = is_own or _is_container(member)
        if self._as_of >= _DOCSTRINGS:
            # Inner classes of the program are described by themselves.
            is_inner = isinstance(member, type) and is_own_code(member.__module__)
            is_plain |= not is_inner and not hasattr(member, "__get__") and name != "_abc_impl"
        return is_plain and name not in _changed_attributes(kind)

    def _member(self, member: Any) -> Any:
        """Return a member of a class, or the name of a class of a package."""
        return library_name(member) if self._as_of >= _DOCSTRINGS and isinstance(member, type) else member

    def _is_state(self, kind: type[Any], name: str) -> bool:
        """Return whether a class changes an attribute of itself, such as a counter."""
        return self._as_of >= _FIELDS and name in attributes_changed_by(kind, self._called)

    def _document(self, thing: Any) -> None:
        """Note a function or class of the program and its module, whose docstrings and annotations code may read."""
        if self._as_of >= _DOCSTRINGS:
            self._documented.setdefault(name_of(thing), thing)
            self._documented.setdefault(module_prefix(thing.__module__), sys.modules.get(thing.__module__))

    def _use_types(self, annotations: Iterable[Any]) -> None:
        """Note the classes of the program in the types of fields."""
        if self._as_of >= _SURROUNDINGS:
            for kind in annotations:
                for one in classes_in(kind, are_generic_seen=self._as_of >= _DOCSTRINGS):
                    self._use_class(one)

    def _use_class(self, kind: type[Any]) -> None:
        """Note a class of the program."""
        if is_own_code(kind.__module__):
            self._used.setdefault(name_of(kind), kind)

    def _use_inner_classes(self, kind: type[Any]) -> None:
        """Note the classes in the body of a class."""
        if self._as_of >= _CLASSES and is_own_code(kind.__module__):
            inner = [member for name, member in vars(kind).items() if not name.startswith("__")]
            for member in inner:
                if isinstance(member, type):
                    self._use_class(member)

    def _plain_method(self, member: Any) -> Any:
        """Return the function of a method or a property, and anything else as it is."""
        if self._as_of >= _CONSTANTS and isinstance(member, property):
            return member.fget
        return getattr(member, "__func__", member)

    def _not_seen(self, value: Any) -> dict[str, Any]:
        name = name_of(type(value))
        self.unseen.append(f"{'.'.join(self._path)} ({name})")
        return {"class": name}

    # Functions.

    def function(self, function: Any) -> dict[str, Any]:
        """Describe a function by name, code, closure, defaults, bound object and the constants it reads."""
        return cast("dict[str, Any]", self._guarded(self._function, function))

    def _function(self, function: Any) -> dict[str, Any]:
        if isinstance(function, functools.partial):
            whole: Any = function.func
            inner = self.function(whole) if not isinstance(whole, type) else self._class(whole)
            return {**inner, "with": self._part("with", [function.args, function.keywords])}
        plain = getattr(function, "__func__", function)
        if not isinstance(plain, FunctionType):
            return self._other_callable(function)
        described: dict[str, Any] = {"name": name_of(function)}
        self._called |= {plain.__name__, *names_in(plain.__code__)}
        if not is_library(plain.__module__):
            self._document(plain)
            self._reads |= names_in(plain.__code__)
            digest = digest_of_code if self._as_of >= _DOCSTRINGS else digest_of_code_with_docstrings
            described[CODE_KEY] = digest(plain.__code__)
        described.update(self._arguments_of(plain))
        owner = getattr(function, "__self__", None)
        if owner is not None:
            described["self"] = self._part("self", owner)
        if self._as_of >= _FIELDS:
            described.update(self._attributes_of_function(plain))
        if constants := self._constants_of(plain):
            described["globals"] = self._part("globals", constants)
        if self._as_of >= _SURROUNDINGS:
            around = surroundings_of(plain, is_constant, with_names=self._as_of >= _DOCSTRINGS)
            self._used = {**dict(around), **self._used}
        return described

    def _constants_of(self, function: FunctionType) -> dict[str, Any]:
        """Return the constants that a function reads, and other functions of the same module."""
        found = dict(globals_of(function, in_lower_case=self._as_of >= _CONSTANTS))
        if self._as_of < _FIELDS or is_library(function.__module__):
            return found
        # The path of the module may change, and its documentation.
        constants = {name: value for name, value in found.items() if not name.startswith("__")}
        changed = globals_changed_by(function) & function.__globals__.keys() & names_in(function.__code__)
        constants |= dict.fromkeys(sorted(changed), CHANGED)
        return self._without_functions(constants, function) if self._as_of >= _DOCSTRINGS else constants

    def _without_functions(self, found: Mapping[str, Any], function: FunctionType) -> dict[str, Any]:
        """Note the functions of a module, and return the rest. Described in each other, they would have no end."""
        prefix = module_prefix(function.__globals__.get("__name__") or function.__module__)
        return {
            name: one
            for name, one in found.items()
            # Modules that are made by a program may have the same name.
            if not isinstance(one, FunctionType) or self._used.setdefault(f"{prefix}{name}", one) is not one
        }

    def _attributes_of_function(self, function: FunctionType) -> dict[str, Any]:
        """Describe the attributes of a function that code reads, and that it does not change itself."""
        # The name of the model is that of a backend, which only we read.
        read = {*self._called, "model"} if self._as_of >= _DOCSTRINGS else self._called
        names = (read & vars(function).keys()) - attributes_set_by(function)
        attributes = {name: vars(function)[name] for name in sorted(names) if not name.startswith("__")}
        return {"attributes": self._part("attributes", attributes)} if attributes else {}

    def _arguments_of(self, function: FunctionType) -> dict[str, Any]:
        """Describe what a function closes over, and its defaults."""
        changed = variables_changed_by(function) if self._as_of >= _CLASSES else ()
        names = function.__code__.co_freevars
        cells = [
            CHANGED if name in changed else cell_content(cell)
            for name, cell in zip(names, function.__closure__ or (), strict=True)
        ]
        bound, keywords = [*cells, *(function.__defaults__ or ())], function.__kwdefaults__
        return {
            **({"with": self._part("with", bound)} if bound else {}),
            **({"keywords": self._part("keywords", keywords)} if keywords else {}),
        }

    def _other_callable(self, function: Any) -> dict[str, Any]:
        """Describe a builtin, such as the method of a str, or an object with `__call__`."""
        if is_cache(function):
            # A cache changes no answer, so describe the function that it wraps.
            return self.function(function.__wrapped__)
        if is_getter(function):
            return {"name": name_of(function), "with": self._part("with", function.__reduce__())}
        owner = getattr(function, "__self__", None)
        named = {"name": name_of(function)}
        if isinstance(function, BuiltinFunctionType) or type(function).__module__ == "builtins":
            return named if owner is None or isinstance(owner, ModuleType) else {**named, "self": self.describe(owner)}
        described = self._special(function) or self._instance(function)
        return {**named, **described} if isinstance(described, dict) else named

    # Settings.

    def requirement(self, requirement: Requirement) -> dict[str, Any]:
        """Describe a requirement by its words and its functions."""
        described: dict[str, Any] = {"description": requirement.description}
        if requirement.check is not None:
            with self.at("check"):
                described["check"] = self.function(requirement.check)
        if requirement.partial is not None:
            with self.at("partial"):
                described["partial"] = self.function(requirement.partial)
        if requirement.blocking:
            described["blocking"] = True
        if requirement.timeout_s is not None and self._as_of >= _SURROUNDINGS:
            described["timeout_s"] = repr(requirement.timeout_s)
        return described

    def _nested_strategy(self, strategy: BaseSamplingStrategy) -> dict[str, Any]:
        """Describe a strategy inside another, with its own requirements."""
        own = as_requirements("requirements", strategy.requirements) if self._as_of >= _FIELDS else ()
        requirements = {"requirements": self._part("requirements", own)} if own else {}
        return {**self.strategy(strategy), **requirements}

    def strategy(self, strategy: BaseSamplingStrategy) -> dict[str, Any]:
        """Describe a strategy by its settings, and the code of a class that is not ours."""
        # Named only where they are on, so that journals from before they were settings can be resumed.
        added = tuple(name for name in ("accept_incomplete", "state_requirements") if getattr(strategy, name))
        # Names with an underscore hold state, not settings, unless nothing changes them.
        public = {name for name in vars(strategy) if not name.startswith("_")} - {"hooks", "requirements", *added}
        public -= {"accept_incomplete", "state_requirements"}
        if self._as_of >= _SURROUNDINGS:
            public |= _private_settings(strategy)
        if self._as_of >= _FIELDS:
            public -= attributes_changed_by(type(strategy), _decisions_of(strategy))
        own = {name: self._part(name, value) for name, value in vars(strategy).items() if name in public}
        settings = {name: self._part(name, getattr(strategy, name)) for name in (*_SETTINGS, *added)}
        return {"class": name_of(type(strategy)), **own, **settings, **self._methods(type(strategy))}


def secret_digest(text: str) -> dict[str, Any]:
    """Describe a text that must not be stored, or is too long."""
    return {"class": "str", "sha256": short_digest(text.encode("utf-8", "backslashreplace"))}


def _private_settings(strategy: BaseSamplingStrategy) -> set[str]:
    """Return the private attributes of a user's strategy that are its own, and that only a constructor sets."""
    kinds = type(strategy).__mro__
    if not any(is_own_code(kind.__module__) for kind in kinds):
        return set()
    functions = [member for kind in kinds if is_library(kind.__module__) for member in vars(kind).values()]
    ours = {name for one in functions if isinstance(one, FunctionType) for name in names_in(one.__code__)}
    private = {name for name in vars(strategy) if name.startswith("_") and not name.startswith("__")}
    return private - ours - _changed_attributes(type(strategy))


def _decisions_of(strategy: BaseSamplingStrategy) -> set[str]:
    """Return the names of the methods that a call may call."""
    ours = [kind for kind in type(strategy).__mro__ if is_library(kind.__module__) and kind is not object]
    return {name for kind in ours for name, member in vars(kind).items() if isinstance(member, FunctionType)}


def _changed_attributes(kind: type[Any]) -> set[str]:
    own = [one for one in kind.__mro__ if is_own_code(one.__module__)]
    return {mangled(name, one) for one in own for name in changes_in(one).attributes}


def _has_stable_text(key: Any) -> bool:
    if isinstance(key, tuple):
        return all(map(_has_stable_text, cast("Iterable[Any]", key)))
    return key is None or isinstance(key, str | int | float | bytes | enum.Enum | type)


def _is_described_by_content(kind: type[Any]) -> bool:
    return issubclass(kind, (enum.Enum, str, int, float, bytes, bytearray, deque, *_CONTAINERS))


def _is_container(value: object) -> bool:
    return isinstance(value, _CONTAINERS)


def _is_textual(kind: type[Any]) -> bool:
    return issubclass(kind, _TEXTUAL)


def _class_name(value: Any) -> str:
    return name_of(cast("object", value.__class__))


def _fields_of_tuple(kind: type[Any]) -> dict[str, list[str]]:
    """Describe the fields of a named tuple."""
    fields: Any = getattr(kind, "_fields", None)
    return {} if fields is None or not issubclass(kind, tuple) else {"fields": list(fields)}


def _type_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else name_of(kind) if isinstance(kind, type) else str(kind)


def _name_of_type(kind: Any) -> str:
    """Return the text of a type. That of a union does not depend on how it is written, nor on Python."""
    return type_name(kind, name_of).replace("types.UnionType[", "typing.Union[")


def _is_reader(value: Any) -> bool:
    return isinstance(value, TypedReader)
