"""Tools that a model may call."""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NotRequired, cast, get_type_hints
from weakref import WeakKeyDictionary

import attrs

from sampling._arguments import check_str, short_repr, wrong_type
from sampling._json.extraction import join_problems, json_pointer
from sampling._schemas.validation import Schema
from sampling.errors import MissingExtra
from sampling.parts import ToolCall

__all__ = ["Tool", "tool"]

_SCHEMA_TIMEOUT_S = 0.25
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
# The three common styles of docstrings: Google's, NumPy's and Sphinx'. Each has a heading and the lines of a parameter.
# Compiled on first use, because most programs have no tools.
_STYLES = (
    (
        r"^(?:Args|Arguments|Parameters):[ \t]*$",
        r"^ +\*{0,2}(\w+)(?: *\([^)]*\))?: +(.+(?:\n(?: {8,}.*)?)*)",
    ),
    (
        r"^Parameters[ \t]*\n-{3,}[ \t]*$",
        r"^(\w+)(?: *:[^\n]*)?\n((?:[ \t]+\S.*(?:\n|\Z))+)",
    ),
    (
        r"(?=^:param )",
        r"^:param (?:[^:\n]* )?(\w+): *(.+(?:\n[ \t]+\S.*)*)",
    ),
)


def _json_copy(schema: object) -> dict[str, Any]:
    if not isinstance(schema, Mapping):
        raise wrong_type("schema", schema, "a JSON schema of the arguments (a dict), as tool(function) makes one")
    given = dict(cast("Mapping[str, Any]", schema))
    if given.get("type") != "object":
        raise ValueError(f'schema must be that of an object, with "type": "object", got {short_repr(given)}')
    if not isinstance(given.get("properties", {}), Mapping):
        raise ValueError(f'the "properties" of schema must be an object of schemas, got {short_repr(given)}')  # noqa: TRY004 - as for the type
    try:
        return cast("dict[str, Any]", json.loads(json.dumps(given, allow_nan=False)))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"schema must be made of JSON values: {error}") from None


@attrs.frozen
class Tool:
    """A tool that a model may call."""

    name: str
    description: str
    schema: Mapping[str, Any] = attrs.field(converter=_json_copy, hash=False, repr=False)
    """The JSON schema of the arguments, which are an object."""

    function: Callable[..., Any] | None = attrs.field(default=None, repr=False)
    """The function to call, sync or async. None for a tool that the application runs itself."""

    _has_own_schema: bool = attrs.field(default=True, init=False, eq=False, repr=False)
    """True if the schema was written by hand, and not made of the function."""

    def __attrs_post_init__(self) -> None:
        check_str("name", self.name)
        if not _NAME.match(self.name):
            raise ValueError(f"name must be 1 to 64 ASCII letters, digits, '_' or '-', got {short_repr(self.name)}")
        check_str("description", self.description)
        if self.function is not None and not callable(self.function):
            raise wrong_type("function", self.function, "a function or None")
        if inspect.isgeneratorfunction(self.function) or inspect.isasyncgenfunction(self.function):
            raise TypeError(f"function must return its result, and {self.name} yields: return a list instead")

    def arguments_of(self, call: ToolCall) -> dict[str, Any]:
        """
        Return the arguments of a call as the function takes them.

        They are validated by the annotations of the function, and by the schema if that was written by hand and the
        extra `jsonschema` is installed. Raise a ValueError that a model can act on.
        """
        arguments = call.parse()
        if self._has_own_schema:
            _check_schema(self.schema, arguments)
        return arguments if self.function is None else _validated(self.function, arguments)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        if self.function is None:
            raise TypeError(f"the tool {self.name!r} has no function")
        return self.function(*args, **kwargs)


def tool(function: Callable[..., Any]) -> Tool:
    """
    Turn a function into a tool.

    Its name, docstring and annotated parameters become the name, the description and the schema. Docstrings in the
    style of Google, NumPy or Sphinx describe the parameters, and so do texts in `Annotated`. The model can't
    choose arguments that a partial has set. It can be used as a decorator, and needs the extra `pydantic`.
    """
    if isinstance(function, Tool):
        return function
    if isinstance(function, type) or not callable(function):
        raise wrong_type("function", function, "a function")
    name = _name_of(function)
    if name == "<lambda>":
        raise ValueError("function must have a name that the model can call, got a lambda. Use def, or Tool(name, …).")
    schema = _adapter(function).json_schema()
    description, explained = _documentation(function)
    schema.pop("title", None)
    explained = {**explained, **_annotated_texts(function)}
    for parameter, shape in schema.get("properties", {}).items():
        shape.pop("title", None)
        if parameter in explained:
            shape.setdefault("description", explained[parameter])
    made = Tool(name, description, {"type": "object", "properties": {}, **schema}, function)
    object.__setattr__(made, "_has_own_schema", False)
    return made


def _documentation(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the description of a function and of its parameters, from its docstring."""
    text = inspect.getdoc(_annotated_function(function)) or inspect.getdoc(_unwrapped(function)) or ""
    for headings, parameters in _STYLES:
        heading = re.search(headings, text, re.MULTILINE)
        if heading is not None:
            found = re.findall(parameters, text[heading.end() :], re.MULTILINE)
            explained = {name: " ".join(words.split()) for name, words in found}
            return text[: heading.start()].strip(), explained
    return text, {}


def _annotated_texts(function: Callable[..., Any]) -> dict[str, str]:
    """Return the descriptions of parameters that are annotated with a text, as in Annotated[str, "The city."]."""
    hints = get_type_hints(_annotated_function(function), include_extras=True)
    metadata = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: one for name, given in metadata.items() for one in given if type(one) is str}


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a partial, or the function itself."""
    while isinstance(function, partial):
        function = function.func
    return function


def _annotated_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that has the annotations: that of a partial, or the method of a callable object."""
    function = _unwrapped(function)
    is_plain = inspect.isroutine(function) or isinstance(function, type) or hasattr(function, "__wrapped__")
    return function if is_plain else type(function).__call__


def _bound_names(function: Callable[..., Any]) -> set[str]:
    """Return the names of the arguments that a partial has set by keyword. The model can't choose them."""
    return set(function.keywords) if isinstance(function, partial) else set()


_function_adapters: "WeakKeyDictionary[Any, Any]" = WeakKeyDictionary()
_method_adapters: "WeakKeyDictionary[Any, Any]" = WeakKeyDictionary()
"""The adapters of functions, as long as these exist: an application may make tools of its own for every request."""


def _adapter(function: Callable[..., Any]) -> Any:
    """Return a pydantic adapter for the arguments of a function, as a typed dict."""
    adapters, key = _function_adapters, function
    if inspect.ismethod(function):
        # Python makes a method each time that it is read from its object, which must not be kept alive.
        adapters, key = _method_adapters, function.__func__
    try:
        adapter = adapters.get(key)
    except TypeError:
        # It can't be hashed.
        return _new_adapter(function)
    if adapter is None:
        adapter = _new_adapter(function)
        # Where a weak reference is not possible, it is made again for each call.
        with suppress(TypeError):
            adapters[key] = adapter
    return adapter


def _new_adapter(function: Callable[..., Any]) -> Any:
    name = _name_of(function)
    try:
        from pydantic import ConfigDict, TypeAdapter, with_config  # noqa: PLC0415 - an extra, only for functions
        from pydantic.errors import PydanticUserError  # noqa: PLC0415
        from typing_extensions import TypedDict  # noqa: PLC0415 - required by pydantic before 3.12
    except ImportError as error:
        raise MissingExtra(f"the schema of the function {name!r}", "pydantic", "pydantic") from error
    try:
        hints = get_type_hints(_annotated_function(function), include_extras=True)
        bound = _bound_names(function)
        parameters = [one for one in inspect.signature(function).parameters.values() if one.name not in bound]
        fields = {one.name: _type_of(name, one, hints) for one in parameters}
        shape: Any = with_config(ConfigDict(extra="forbid"))(cast("Any", TypedDict)(name, fields))
        adapter: Any = TypeAdapter(shape)
        adapter.json_schema()
    except (PydanticUserError, NameError) as error:
        reason = str(error).partition("\n")[0]
        raise TypeError(f"function must have parameters that JSON can hold, got {name}: {reason}") from None
    return adapter


def _type_of(name: str, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Any:
    if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
        raise TypeError(f"function must have named parameters only, got {name}({parameter})")
    if parameter.name not in hints:
        raise TypeError(
            f"function must have an annotation for every parameter, and {name} has none for {parameter.name!r}"
        )
    hint = hints[parameter.name]
    return hint if parameter.default is parameter.empty else NotRequired[hint]


def _validated(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        adapter = _adapter(function)
    except (TypeError, ImportError):
        # A function without annotations, in a Tool that was made by hand.
        _check_names(function, arguments)
        return arguments
    from pydantic import ValidationError  # noqa: PLC0415 - an extra, installed if there is an adapter

    try:
        return cast("dict[str, Any]", adapter.validate_python(arguments))
    except ValidationError as error:
        problems = [
            f"at {json_pointer(one['loc'])}: {one['msg'][:1].lower()}{one['msg'][1:]}"
            for one in error.errors(include_url=False, include_context=False)
        ]
        raise ValueError(join_problems(problems)) from None


def _check_names(function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Raise ValueError if a function can't be called with arguments of these names."""
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise ValueError(f"the arguments do not match the function: {error}") from None
    except ValueError:
        # Some functions that are written in C have no signature.
        return


def _check_schema(schema: Mapping[str, Any], arguments: dict[str, Any]) -> None:
    """Raise ValueError if arguments do not match a schema."""
    try:
        validator = Schema(schema)
    except MissingExtra:
        return
    problems = validator.problems_within(_SCHEMA_TIMEOUT_S, arguments)
    if problems:
        raise ValueError(join_problems(problems))


def _name_of(function: Callable[..., Any]) -> str:
    function = _unwrapped(function)
    return str(getattr(function, "__name__", type(function).__name__))
