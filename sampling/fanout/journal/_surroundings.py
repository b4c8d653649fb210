"""Find what a function reads of the modules around it, apart from plain constants."""

import ast
import dis
import importlib.util
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple, cast

import attrs

from sampling.fanout.journal._code import CODE_KEY

__all__ = [
    "Changes",
    "ModuleSource",
    "attributes_changed_by",
    "attributes_set_by",
    "changes_in",
    "globals_changed_by",
    "is_library",
    "is_own_code",
    "library_name",
    "mangled",
    "module_prefix",
    "names_in",
    "surroundings_of",
    "variables_changed_by",
]

_CHANGING: Final = (
    *("add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert", "move_to_end", "pop"),
    *("popitem", "popleft", "remove", "reverse", "setdefault", "sort", "update"),
)
"""Methods that change a container."""

_WRITING: Final = ("mkdir", "touch", "unlink", "write_bytes", "write_text")
"""Methods of a path that change its file."""

_CONSTRUCTORS: Final = ("__init__", "__new__", "__post_init__", "__attrs_post_init__")


def is_library(module: str | None) -> bool:
    """Return whether a module is ours, pydantic's or Python's. Its code is known by its name."""
    package = (module or "").partition(".")[0]
    return package in {"sampling", "pydantic"} or package in sys.stdlib_module_names - {"__main__"}


@lru_cache(maxsize=1024)
def is_own_code(module: str | None) -> bool:
    """Return whether a module is a part of the user's program, and not an installed package."""
    if module is None or is_library(module):
        return False
    return not _is_installed(getattr(sys.modules.get(module), "__file__", None) or "")


def _is_installed(file: str) -> bool:
    return "site-packages" in file or "dist-packages" in file


def module_prefix(module: str) -> str:
    """Return what names of a module begin with. A script has another module name when it is imported."""
    return "" if module in {"__main__", "__mp_main__"} else f"{module}."


def names_in(code: CodeType) -> set[str]:
    """Return all names that a code reads: globals, attributes and imports."""
    nested = [names_in(one) for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*nested)


@attrs.frozen
class ModuleSource:
    """The source of a module that a function imports itself."""

    content: bytes


def library_name(thing: Any) -> dict[str, str]:
    """Return the name of a module, function or class of a package. Where it is in there may change with Python."""
    is_module = isinstance(thing, ModuleType)
    name = thing.__name__ if is_module else f"{thing.__module__.partition('.')[0]}.{thing.__qualname__}"
    return {CODE_KEY: name}


def surroundings_of(
    function: FunctionType, is_constant: Callable[[str, object], bool], *, with_names: bool
) -> Iterator[tuple[str, Any]]:
    """
    Yield what a function reads of its module and of other modules of the program, with its place.

    These are functions and classes, and objects and containers that no function changes. Those that `is_constant`
    accepts are left out, and so are functions of the same module: they are a part of its description already.

    `with_names`, the modules, functions and classes of packages are among it by their names, and variables of functions
    are not taken for those of the module.
    """
    if not is_own_code(function.__module__) or function.__globals__.get("__name__") is None:
        return
    module = str(function.__globals__["__name__"])
    prefix = module_prefix(module)
    changes = changes_in(function)
    changed = changes.of_module if with_names else changes.names
    names = names_in(function.__code__)
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        is_near = isinstance(value, FunctionType) and value.__module__ == function.__module__
        if name not in changed and not is_near and not is_constant(name, value):
            if with_names and isinstance(value, FunctionType | ModuleType | type):
                yield from _named(f"{prefix}{name}", name, value)
            yield from _readable(f"{prefix}{name}", value, names)
    package = function.__globals__.get("__package__")
    for name in sorted(_imports_in(function.__code__, package if isinstance(package, str) else "")):
        if (source := _source_of(name)) is not None:
            yield f"import {name}", ModuleSource(source)


def _named(place: str, name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a name stands for that is imported from a package: another one may have the same name."""
    if isinstance(value, ModuleType):
        if value.__name__ != name and not is_own_code(value.__name__):
            yield place, library_name(value)
    elif value.__module__ is not None and not is_own_code(value.__module__):
        yield place, library_name(value)


def _readable(
    place: str, value: Any, names: set[str], around: tuple[ModuleType, ...] = ()
) -> Iterator[tuple[str, Any]]:
    """Yield a value that can change an answer. Of a module, yield those of its members that are named."""
    if isinstance(value, ModuleType):
        if is_own_code(value.__name__) and value not in around:
            for name in sorted(names & vars(value).keys()):
                yield from _readable(f"{value.__name__}.{name}", vars(value)[name], names, (*around, value))
    elif isinstance(value, FunctionType | type):
        if is_own_code(value.__module__):
            yield place, value
    elif value is not None and not place.rpartition(".")[2].startswith("__"):
        yield place, value


@lru_cache(maxsize=1024)
def _imports_in(code: CodeType, package: str) -> frozenset[str]:
    """Return the modules that a function of a package imports itself, and what may be one: `b` of `from a import b`."""
    nested = [_imports_in(one, package) for one in code.co_consts if isinstance(one, CodeType)]
    found: set[str] = set()
    steps = [one for one in dis.get_instructions(code) if one.opname != "EXTENDED_ARG"]
    for place, one in enumerate(steps):
        if one.opname == "IMPORT_NAME":
            level, taken = steps[place - 2].argval, steps[place - 1].argval
            module = _absolute(f"{'.' * level}{one.argval}", package)
            found |= {module, *(f"{module}.{name}" for name in taken or ())}
    return frozenset(found).union(*nested)


def _absolute(module: str, package: str) -> str:
    """Return the name of a module whose import may be relative to a package."""
    try:
        return importlib.util.resolve_name(module, package)
    except ImportError:
        return module


def _source_of(module: str) -> bytes | None:
    """Return the source of a module of the program, which need not be imported yet, or None for any other."""
    try:
        spec = None if is_library(module) else _spec_of(module)
        origin = None if spec is None or not spec.has_location else spec.origin
        return None if origin is None or _is_installed(origin) else Path(origin).read_bytes()
    except (ImportError, OSError, ValueError):
        return None


def _spec_of(module: str) -> ModuleSpec | None:
    """Find a module. It is not imported, and neither are its parents, and it is the same whether they are."""
    name, *others = module.split(".")
    spec = importlib.util.find_spec(name)
    for other in others:
        name = f"{name}.{other}"
        places = None if spec is None else spec.submodule_search_locations
        spec = None if places is None else PathFinder.find_spec(name, places)
    return spec


class Changes(NamedTuple):
    """What the functions of a module change."""

    names: frozenset[str]
    """Variables whose content is changed, or that are assigned as globals."""

    of_module: frozenset[str]
    """Those of them that are no variables of the functions themselves."""

    attributes: frozenset[str]
    """Attributes that are changed, other than by a constructor."""


def changes_in(function: Any) -> Changes:
    """Return what the module of a function changes. If its source is not known, return what the function does."""
    known = _changes_of(sys.modules.get(function.__module__)) or _changes_of(function)
    return Changes(frozenset(), frozenset(), frozenset()) if known is None else known


def attributes_changed_by(kind: type[Any], names: Iterable[str]) -> set[str]:
    """Return the attributes that methods of these names change, themselves or through other methods of their class."""
    own = [one for one in kind.__mro__ if is_own_code(one.__module__)]
    changed: set[str] = set()
    seen: set[str] = {*_CONSTRUCTORS}
    waiting = set(names)
    while own and waiting:
        name = waiting.pop()
        seen.add(name)
        for one in own:
            given: Any = vars(one).get(name)
            member = inspect.unwrap(cast("Any", given.fget if isinstance(given, property) else given))
            if isinstance(member, FunctionType):
                changes = _changes_of(member.__code__)
                changed |= set() if changes is None else {mangled(each, one) for each in changes.attributes}
                waiting |= names_in(member.__code__) - seen
    return changed


def attributes_set_by(function: FunctionType) -> frozenset[str]:
    """Return the attributes that a function changes itself."""
    changes = _changes_of(function.__code__)
    return frozenset() if changes is None else changes.attributes


def mangled(name: str, kind: type[Any]) -> str:
    """Return the name under which Python keeps an attribute of a class."""
    is_private = name.startswith("__") and not name.endswith("__")
    return f"_{kind.__name__.lstrip('_')}{name}" if is_private else name


def variables_changed_by(function: FunctionType) -> frozenset[str]:
    """Return the variables in the closure of a function that it assigns, or whose content it changes."""
    code = function.__code__
    if not code.co_freevars or is_library(function.__module__):
        return frozenset()
    changes = _changes_of(code)
    changed = _assigned_in(code) if changes is None else changes.names | _assigned_in(code)
    return changed & frozenset(code.co_freevars)


def globals_changed_by(function: FunctionType) -> frozenset[str]:
    """Return the variables of its module that a function changes, itself or through other functions of the module."""
    changed: set[str] = set()
    seen: set[CodeType] = set()
    waiting = [function]
    while waiting:
        one = waiting.pop()
        code = one.__code__
        if code in seen or one.__module__ != function.__module__:
            continue
        seen.add(code)
        changes = _changes_of(code)
        names = _assigned_in(code, "STORE_GLOBAL") | (frozenset[str]() if changes is None else changes.names)
        changed |= names - {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        used = [one.__globals__.get(name) for name in names_in(code)]
        waiting += [value for value in used if isinstance(value, FunctionType)]
    return frozenset(changed)


@lru_cache(maxsize=1024)
def _assigned_in(code: CodeType, operation: str = "STORE_DEREF") -> frozenset[str]:
    """Return the variables of closures that a code assigns, or others with the operation for those."""
    nested = [_assigned_in(one, operation) for one in code.co_consts if isinstance(one, CodeType)]
    found = {str(one.argval) for one in dis.get_instructions(code) if one.opname == operation}
    return frozenset(found).union(*nested)


@lru_cache(maxsize=256)
def _changes_of(thing: Any) -> Changes | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    names: set[str] = set()
    of_module: set[str] = set()
    attributes: set[str] = set()
    for function, variables in _functions_in(tree):
        for target in _targets(function):
            root, through = _path(target)
            names.add(root)
            of_module |= {root} - variables
            if getattr(function, "name", "") not in _CONSTRUCTORS:
                attributes.update(through)
    return Changes(frozenset(names), frozenset(of_module), frozenset(attributes))


def _functions_in(tree: ast.AST) -> Iterator[tuple[ast.AST, frozenset[str]]]:
    """Yield all functions, with the names of their variables and of those of the functions around them."""
    given = _given_in(tree)
    waiting = [(tree, frozenset[str]())]
    while waiting:
        node, variables = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            variables |= _variables_of(node, given)
            yield node, variables
        waiting += [(one, variables) for one in ast.iter_child_nodes(node)]


def _variables_of(function: ast.AST, given: set[str]) -> set[str]:
    """Return the variables of a function, without parameters that calls may give one of the module."""
    inside = list(ast.walk(function))
    assigned = {one.id for one in inside if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    declared = {name for one in inside if isinstance(one, ast.Global) for name in one.names}
    parameters = {one.arg for one in inside if isinstance(one, ast.arg)}
    return (assigned | parameters) - declared - (parameters & given)


def _given_in(tree: ast.AST) -> set[str]:
    """Return the names of variables that are arguments of calls."""
    calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call)]
    values = [value for one in calls for value in (*one.args, *(keyword.value for keyword in one.keywords))]
    return {value.id for value in values if isinstance(value, ast.Name)}


def _targets(function: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that a function changes: targets of assignments, and objects of changing methods."""
    for node in ast.walk(function):
        if isinstance(node, ast.Global):
            yield from map(ast.Name, node.names)
        elif isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node
        elif isinstance(node, ast.Call):
            yield from _changed_by_call(node)


def _changed_by_call(call: ast.Call) -> Iterator[ast.expr]:
    """Yield the container that a call changes, or the path of the file that it writes."""
    function = call.func
    if isinstance(function, ast.Attribute):
        opens = function.attr == "open" and any(map(_is_for_writing, _values_of(call)))
        if opens or function.attr in _CHANGING or function.attr in _WRITING:
            yield function.value
    elif isinstance(function, ast.Name) and function.id == "open" and any(map(_is_for_writing, _values_of(call))):
        yield from call.args[:1]


def _values_of(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]


def _is_for_writing(mode: ast.expr) -> bool:
    """Return whether the mode of an opened file lets it change."""
    value = mode.value if isinstance(mode, ast.Constant) else None
    return isinstance(value, str) and set(value) <= set("rwaxbt+") and bool(set(value) & set("wax+"))


def _path(expression: ast.expr) -> tuple[str, list[str]]:
    """Return the variable at the root of an expression, and the attributes on the way from there."""
    attributes: list[str] = []
    while isinstance(expression, ast.Attribute | ast.Subscript):
        if isinstance(expression, ast.Attribute):
            attributes.append(expression.attr)
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else "", attributes
