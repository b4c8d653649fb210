"""Find the source of a lambda."""

import ast
import linecache
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

__all__ = ["describe_lambda"]

_MAX_HISTORY = 200
"""The number of lines of a terminal's history to search."""

_MAX_BLOCK = 20
"""The number of lines that a block with a lambda may continue."""


@lru_cache(maxsize=1024)
def describe_lambda(code: CodeType) -> str:
    """Return the body of a lambda, else a sentence with the names and values that it uses."""
    for source in _sources(code):
        body = _find_body(source, code)
        if body is not None:
            return body
    return _describe_unseen(code)


def _sources(code: CodeType) -> Iterator[str]:
    """Yield texts that may contain the lambda, the most likely first."""
    # linecache also knows the source of notebook cells, and from Python 3.13 on that of the interactive interpreter.
    yield "".join(linecache.getlines(code.co_filename))
    if not code.co_filename.startswith("<"):
        return
    if "-c" in sys.orig_argv[:-1]:
        yield sys.orig_argv[sys.orig_argv.index("-c") + 1]
    # Another thread runs an interactive console if the event loop has this one, as in `python -m asyncio`.
    for frame in sys._current_frames().values():  # pyright: ignore[reportPrivateUsage] - it is documented
        yield from _console_inputs(frame)
    yield from _history_blocks(code.co_firstlineno)


def _console_inputs(frame: FrameType | None) -> Iterator[str]:
    """Yield what a `code.InteractiveInterpreter` is running."""
    while frame is not None:
        if frame.f_code.co_name == "runsource" and isinstance(source := frame.f_locals.get("source"), str):
            yield source
        frame = frame.f_back


def _history_blocks(line: int) -> Iterator[str]:
    """Yield blocks of a terminal's history that may have the lambda at a line, the last one first."""
    readline: Any = sys.modules.get("readline")
    if readline is None:
        return
    last: int = readline.get_current_history_length()
    items = [readline.get_history_item(number + 1) or "" for number in range(max(0, last - _MAX_HISTORY), last)]
    for end in range(len(items), 0, -1):
        # The line of the lambda is the last one, or the block goes on after it.
        for length in range(line, min(end, line + _MAX_BLOCK) + 1):
            yield "\n".join(items[end - length : end])


def _find_body(source: str, code: CodeType) -> str | None:
    if "lambda" not in source:
        return None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno and _compiles_to(node, code):
            return ast.unparse(node.body)
    return None


def _compiles_to(node: ast.Lambda, code: CodeType) -> bool:
    """Return True if a lambda is the one with this code, and not one that looks the same elsewhere."""
    # Inside of a function whose arguments are what the lambda takes from its surroundings.
    around = ast.arguments(
        posonlyargs=[], args=[ast.arg(name) for name in code.co_freevars], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    expression = ast.fix_missing_locations(ast.Expression(ast.Lambda(around, node)))
    compiled = compile(expression, code.co_filename, "eval", dont_inherit=True)
    # The last one, because lambdas in the default values of arguments come before it.
    return _is_same(code, _last_code(_last_code(compiled)))


def _last_code(code: CodeType) -> CodeType:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)][-1]


def _is_same(one: CodeType, other: CodeType) -> bool:
    return (
        (one.co_code, one.co_names, one.co_varnames) == (other.co_code, other.co_names, other.co_varnames)
        and len(one.co_consts) == len(other.co_consts)
        and list(one.co_positions()) == list(other.co_positions())
        and all(map(_is_same_constant, one.co_consts, other.co_consts))
    )


def _is_same_constant(one: object, other: object) -> bool:
    if isinstance(one, CodeType) and isinstance(other, CodeType):
        return _is_same(one, other)
    return type(one) is type(other) and one == other


def _describe_unseen(code: CodeType) -> str:
    """Return a sentence that a model can act on, without the source."""
    values = [repr(value) for value in code.co_consts if isinstance(value, str | int | float) and value is not True]
    words = [*dict.fromkeys([*code.co_names, *code.co_freevars, *values])]
    return f"passes a check in Python that uses {', '.join(words)}" if words else "passes a check in Python"
