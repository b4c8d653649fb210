"""
The fingerprint of a run.

It is stored when the run begins, and compared when it resumes.
"""

import functools
import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from types import CodeType
from typing import Any, cast

from sampling._message_json import canonical, digest
from sampling._text import quoted
from sampling.fanout.items import as_item
from sampling.messages import Context, Options
from sampling.requirements import Requirement
from sampling.strategy import BaseSamplingStrategy

__all__ = ["differences", "fingerprint_of", "item_digest"]

_PYTHON = ".".join(map(str, sys.version_info[:2]))
_CODE = "code of Python "
"""The key of a code digest. Bytecode differs between Python versions, so it is compared within one version only."""

_LONGEST_SHOWN = 80
_DEEPEST = 6


def fingerprint_of(
    strategy: BaseSamplingStrategy,
    requirements: Sequence[Requirement],
    context: Context | None,
    options: Options | None,
    total: int | None,
) -> dict[str, Any]:
    """
    Return the settings that identify a run.

    They are JSON values. Settings that may be secret are digests.
    """
    return {
        "strategy": _strategy(strategy),
        "requirements": [_requirement(requirement) for requirement in requirements],
        "context": [] if context is None else [[one.role, f"sha256:{digest(one.content)[:16]}"] for one in context],
        "options": _options(options or Options()),
        "items": total,
    }


def item_digest(given: object, index: int) -> int:
    """Return a digest of an item: its key, parser and text."""
    # A plain text is the common case, and building an `Item` for each of a million is slow.
    if type(given) is str:
        described = f"{index}\0\0{given}"
    else:
        item = as_item(given, index, "")
        parser = item.action.parser
        described = f"{item.key}\0{'' if parser is None else _name(parser)}\0{item.action.text}"
    digest = hashlib.blake2b(described.encode("utf-8", "backslashreplace"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _strategy(strategy: BaseSamplingStrategy) -> dict[str, Any]:
    settings = ("loop_budget", "concurrency_budget", "deterministic", "check_timeout_s", "max_context_chars")
    # Names with an underscore hold state, not settings.
    public = {name for name in vars(strategy) if not name.startswith("_")} - {"hooks", "requirements"}
    own = {name: _plain(value) for name, value in vars(strategy).items() if name in public}
    return {"class": _name(type(strategy)), **own, **{name: _plain(getattr(strategy, name)) for name in settings}}


def _requirement(requirement: Requirement) -> dict[str, Any]:
    described: dict[str, Any] = {"description": requirement.description}
    if requirement.check is not None:
        described["check"] = _callable(requirement.check, 0)
    if requirement.partial is not None:
        described["partial"] = _callable(requirement.partial, 0)
    if requirement.blocking:
        described["blocking"] = True
    return described


def _options(options: Options) -> dict[str, Any]:
    names = ("model", "temperature", "max_tokens", "seed", "stop", "schema")
    described = {name: _plain(value) for name in names if (value := getattr(options, name)) not in (None, ())}
    # Extra options may contain headers and keys.
    extra = {name: f"sha256:{digest(_plain(value))[:16]}" for name, value in options.extra.items()}
    return {**described, **({"extra": extra} if extra else {})}


def _plain(value: Any, depth: int = 0) -> Any:
    """
    Convert any value to JSON values.

    They are the same in every process. So an object is described, not shown by its `repr`, which may have its address.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return repr(value)
    if depth > _DEEPEST:
        return _name(type(value))
    if isinstance(value, Mapping):
        pairs = cast("Iterable[tuple[Any, Any]]", value.items())
        return {str(key): _plain(item, depth + 1) for key, item in pairs}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in cast("Iterable[Any]", value)]
    return _described(value, depth)


def _described(value: Any, depth: int) -> Any:
    """
    Describe an object by its schema, settings or code.

    If it has none of these, the name of its type is used.
    """
    if callable(schema := getattr(value, "model_json_schema", None)):
        return _plain(schema(), depth + 1)
    if isinstance(value, Requirement):
        return _requirement(value)
    if isinstance(value, BaseSamplingStrategy):
        return _strategy(value)
    return _callable(value, depth) if callable(value) else _name(type(value))


def _callable(function: Any, depth: int) -> dict[str, Any]:
    """Describe a function by name, code, closure and defaults."""
    if isinstance(function, functools.partial):
        return {**_callable(function.func, depth + 1), "with": _plain([function.args, function.keywords], depth + 1)}
    described: dict[str, Any] = {"name": _name(function)}
    plain = getattr(function, "__func__", function)
    code = getattr(plain, "__code__", None)
    if isinstance(code, CodeType):
        described[f"{_CODE}{_PYTHON}"] = hashlib.sha256(_code(code).encode()).hexdigest()[:16]
    cells = [_content(cell) for cell in getattr(plain, "__closure__", None) or ()]
    bound = [*cells, *(getattr(plain, "__defaults__", None) or ())]
    if bound and depth <= _DEEPEST:
        described["with"] = _plain(bound, depth + 1)
    return described


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        # The cell is empty until its variable is assigned.
        return None


def _code(code: CodeType) -> str:
    constants = [_code(one) if isinstance(one, CodeType) else _constant(one) for one in code.co_consts]
    return canonical([code.co_code.hex(), list(code.co_names), constants])


def _constant(value: object) -> str:
    # The order of a set differs between processes.
    return repr(sorted(map(repr, cast("frozenset[object]", value)))) if isinstance(value, frozenset) else repr(value)


def _name(thing: Any) -> str:
    name = getattr(thing, "__qualname__", None) or type(thing).__qualname__
    module = getattr(thing, "__module__", None) or type(thing).__module__
    # A script has another module name when it is imported.
    return str(name) if module in {"__main__", "__mp_main__"} else f"{module}.{name}"


# Comparison.


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """
    Return one line for each difference.

    A line has the path, the old value and the new value.
    """
    return list(_differences("", then, now))


def _differences(where: str, then: Any, now: Any) -> Iterator[str]:
    if isinstance(then, dict) and isinstance(now, dict):
        before, after = cast("dict[str, Any]", then), cast("dict[str, Any]", now)
        for name in dict.fromkeys([*before, *after]):
            if not (name.startswith(_CODE) and (name not in before or name not in after)):
                yield from _differences(f"{where}.{name}" if where else name, before.get(name), after.get(name))
    elif isinstance(then, list) and isinstance(now, list):
        pairs = zip_longest(cast("Iterable[Any]", then), cast("Iterable[Any]", now))
        for place, (was, is_now) in enumerate(pairs):
            yield from _differences(f"{where}[{place}]", was, is_now)
    elif then != now and not (where == "items" and None in (then, now)):
        yield f"{where}: was {_shown(cast('object', then))}, is {_shown(cast('object', now))}"


def _shown(value: object) -> str:
    return (
        "not there" if value is None else quoted(value if isinstance(value, str) else canonical(value), _LONGEST_SHOWN)
    )
