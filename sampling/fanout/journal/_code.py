"""Describe the code of functions, to compare it between processes."""

import ast
import dis
import hashlib
import inspect
import sys
from collections.abc import Callable
from functools import lru_cache
from types import CodeType
from typing import Final, cast

from sampling._serialization.messages import canonical

__all__ = [
    "CODE",
    "CODE_KEY",
    "PYTHON",
    "digest_of_code",
    "digest_of_code_with_docstrings",
    "digest_of_source",
    "short_digest",
]

CODE: Final = "code of Python "
"""The key of a code digest. Bytecode differs between Python versions, so it is compared within one version only."""

PYTHON: Final = ".".join(map(str, sys.version_info[:2]))
CODE_KEY: Final = CODE + PYTHON
_PARAMETERS: Final = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def digest_of_code(code: CodeType) -> str:
    """Return a digest of the instructions of a function, without comments, docstrings and line numbers."""
    return short_digest(_instructions(code).encode())


def digest_of_code_with_docstrings(code: CodeType) -> str:
    """Return the digest of code that earlier formats recorded."""
    return short_digest(_bytecode(code).encode())


def digest_of_source(source: bytes) -> str:
    """Return a digest of the code of a module, without comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            has_docstring = ast.get_docstring(node, clean=False) is not None
            node.body[: has_docstring and 1] = [ast.Pass()]
    return digest_of_code(compile(ast.fix_missing_locations(tree), "", "exec", dont_inherit=True))


def short_digest(content: bytes | bytearray) -> str:
    """Return a digest of a content, as short as it is in fingerprints."""
    return hashlib.sha256(content).hexdigest()[:16]


@lru_cache(maxsize=1024)
def _instructions(code: CodeType) -> str:
    """Return the instructions of a code, with the constants that they load. No instruction loads a docstring."""
    loaded: dict[int, int] = {}
    instructions: list[tuple[int, int | None]] = []
    for one in dis.get_instructions(code):
        # A docstring takes the first place among the constants, and moves all others.
        is_constant = one.arg is not None and one.opcode in dis.hasconst
        place = loaded.setdefault(cast("int", one.arg), len(loaded)) if is_constant else one.arg
        instructions.append((one.opcode, place))
    constants = [_constant(code.co_consts[place], _instructions) for place in loaded]
    # What a `try` covers and what parameters a function has is not in its instructions.
    shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & _PARAMETERS)
    return canonical([instructions, code.co_exceptiontable.hex(), list(code.co_names), constants, shape])


def _bytecode(code: CodeType) -> str:
    constants = [_constant(one, _bytecode) for one in code.co_consts]
    return canonical([code.co_code.hex(), list(code.co_names), constants])


def _constant(value: object, describe: Callable[[CodeType], str]) -> str:
    if isinstance(value, CodeType):
        return describe(value)
    # The order of a set differs between processes.
    return repr(sorted(map(repr, cast("frozenset[object]", value)))) if isinstance(value, frozenset) else repr(value)
