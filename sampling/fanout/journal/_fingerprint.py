"""
The fingerprint of a run.

It is stored when the run begins, and compared when it resumes.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import zip_longest
from types import MethodType
from typing import Any, NamedTuple, cast

from sampling._serialization.messages import canonical, digest, plain_content
from sampling._text import quoted
from sampling.backends.layers import ToolLoop
from sampling.fanout.items import Item, as_item
from sampling.fanout.journal._code import CODE, PYTHON
from sampling.fanout.journal._description import CHANGED, FORMAT, Describer, secret_digest
from sampling.fanout.journal._inspection import name_of
from sampling.messages import Context, Options
from sampling.protocols import BackendLike
from sampling.requirements import Requirement
from sampling.strategy import BaseSamplingStrategy

__all__ = [
    "cannot_compare",
    "differences",
    "earlier_item_digests",
    "fingerprint_of",
    "forget_descriptions",
    "item_digest",
    "unseen_in",
]

_ONCE_DESCRIBED = ("__repr__", "__replace__", "__file__", "__name__", "__doc__", "path")
"""
What earlier formats described, too.

These are methods that Python generates for a dataclass, variables of a module that Python sets, and paths of files.
"""

_NOT_MISSED = (CODE, ".__notes__")
"""What only one of two descriptions may have: code of another Python, and notes on errors, as once described."""

_WITHOUT_NUMBER = 3
"""The last format whose digests of items do not depend on its number."""

_WITH_DOCSTRINGS = 6
"""
The last format whose digests of code depend on docstrings, and without the model of a function with bound arguments.

Those before it are compared with it.
"""

_LONGEST_SHOWN = 80
_MODEL_NAMES = ("model", "model_name", "model_id")


def fingerprint_of(
    strategy: BaseSamplingStrategy,
    requirements: Sequence[Requirement],
    context: Context | None,
    options: Options | None,
    total: int | None,
    backend: BackendLike | None = None,
    as_of: int = FORMAT,
) -> dict[str, Any]:
    """
    Return the settings that identify a run.

    They are JSON values. Settings that may be secret are digests. Under "unseen" are the places of objects that can't
    be compared. To compare them with those of an earlier format, describe them as of that.
    """
    as_of = min(max(as_of, _WITH_DOCSTRINGS), FORMAT)
    describer = Describer(as_of)
    with describer.at("strategy"):
        described_strategy = describer.strategy(strategy)
    described_requirements: list[Any] = []
    for place, requirement in enumerate(requirements):
        with describer.at(f"requirements[{place}]"):
            described_requirements.append(describer.requirement(requirement))
    with describer.at("options"):
        described_options = _options(options or Options(), describer)
    with describer.at("tools"):
        tools = [describer.describe(one) for one in _tools_of(backend)]
    return {
        # Earlier formats saw less, and those without a number are of the first.
        "format": as_of,
        "python": PYTHON,
        "strategy": described_strategy,
        "requirements": described_requirements,
        "context": []
        if context is None
        else [[one.role, f"sha256:{digest(plain_content(one.content))[:16]}"] for one in context],
        "options": described_options,
        "model": _model_of(backend, of_functions=as_of > _WITH_DOCSTRINGS),
        "tools": tools,
        "items": total,
        "uses": describer.used(),
        "unseen": sorted(set(describer.unseen)),
    }


def _options(options: Options, describer: Describer) -> dict[str, Any]:
    described = {name: describer.describe(value) for name, value in options.given().items() if name != "extra"}
    # Extra options may contain headers and keys.
    extra = {name: f"sha256:{digest(describer.describe(value))[:16]}" for name, value in options.extra.items()}
    return {**described, **({"extra": extra} if extra else {})}


def _model_of(backend: Any, *, of_functions: bool) -> str | None:
    """Return the name of the model behind all layers of a backend. The server's address does not count."""
    inner: object = getattr(backend, "inner", None)
    if isinstance(inner, tuple):
        names = [_model_of(one, of_functions=of_functions) for one in cast("tuple[object, ...]", inner)]
        return ", ".join(name for name in names if name is not None) or None
    named = [getattr(backend, name, None) for name in _MODEL_NAMES]
    name = next((name for name in named if isinstance(name, str)), None)
    return _model_of_function(backend) if name is None and of_functions else name


def _model_of_function(backend: Any) -> str | None:
    """Return the name of the model that a function is bound to, as an argument or as an attribute of its object."""
    if isinstance(backend, partial):
        given = [backend.keywords.get(name) for name in _MODEL_NAMES]
        named = next((name for name in given if isinstance(name, str)), None)
        return _model_of(backend.func, of_functions=True) if named is None else named
    return _model_of(backend.__self__, of_functions=True) if isinstance(backend, MethodType) else None


def _tools_of(backend: Any) -> Iterator[Any]:
    """Yield the tools that layers of a backend offer and run, and how often."""
    inner: object = getattr(backend, "inner", None)
    if isinstance(backend, ToolLoop):
        yield {"tools": backend.tools, "max_rounds": backend.max_rounds}
    if isinstance(inner, tuple):
        for one in cast("tuple[object, ...]", inner):
            yield from _tools_of(one)


# Items.


def item_digest(given: object, index: int) -> int:
    """Return a digest of an item: its key and its question, which is its text, role, parser and schema."""
    # A plain text is the common case, and building an `Item` for each of a million is slow.
    if type(given) is str:
        return _digest_of(f"{index}\0\0{given}")
    return _digest_with(as_item(given, index, ""), FORMAT)


def earlier_item_digests(given: object, index: int) -> tuple[int, ...]:
    """Return the digests that earlier versions recorded, which saw less of a parser, or only its name."""
    item = as_item(given, index, "")
    if item.action.parser is None and item.action.schema is None:
        return (_digest_of(_legacy_text(item)),)
    earlier = (6, 5, 4, _WITHOUT_NUMBER, 2)
    return (*(_digest_with(item, as_of) for as_of in earlier), _digest_of(_legacy_text(item)))


def unseen_in(given: object) -> tuple[str, ...]:
    """Return the places in the parser and the schema of an item that can't be compared."""
    # Most items are plain texts.
    if type(given) is str:
        return ()
    action = as_item(given, 0, "").action
    named = (("parser", action.parser), ("schema", action.schema))
    return tuple(
        # The parser itself has no place, only a type in brackets.
        f"{name}{place}" if place.startswith(" ") else f"{name}.{place}"
        for name, thing in named
        if thing is not None
        for place in _described(thing, FORMAT).unseen
    )


def forget_descriptions() -> None:
    """Describe parsers anew: they, and what they use, may have changed since the last run of this process."""
    _described_once.cache_clear()


def _digest_with(item: Item[Any], as_of: int) -> int:
    parser, schema = item.action.parser, item.action.schema
    if parser is None and schema is None:
        return _digest_of(_legacy_text(item))
    described = [_described(thing, as_of).text for thing in (parser, schema)]
    # With the number of the format, so that what the current one sees can't be taken for what an earlier one saw.
    number = [str(as_of)] if as_of > _WITHOUT_NUMBER else []
    return _digest_of("\0".join([_legacy_text(item), *described, *number]))


def _legacy_text(item: Item[Any]) -> str:
    parser, content = item.action.parser, item.action.content
    text = content if isinstance(content, str) else canonical(plain_content(content))
    return f"{item.key}\0{'' if parser is None else name_of(parser)}\0{text}"


class _Description(NamedTuple):
    text: str
    unseen: tuple[str, ...]


def _described(thing: Any, as_of: int) -> _Description:
    try:
        return _described_once(thing, as_of)
    except TypeError:
        # It can't be hashed, such as a schema that is a dict.
        return _describe(thing, as_of)


@lru_cache(maxsize=64)
def _described_once(thing: Any, as_of: int) -> _Description:
    return _describe(thing, as_of)


def _describe(thing: Any, as_of: int) -> _Description:
    describer = Describer(as_of)
    described = describer.describe(thing)
    text = canonical([described, used] if (used := describer.used()) else described)
    return _Description(text, tuple(sorted(set(describer.unseen))))


def _digest_of(described: str) -> int:
    # A copy, because creating a hash with parameters takes longer than hashing a short text.
    hashed = _EMPTY_HASH.copy()
    hashed.update(described.encode("utf-8", "backslashreplace"))
    return int.from_bytes(hashed.digest(), "little", signed=True)


_EMPTY_HASH = hashlib.blake2b(digest_size=8)


# Comparison.


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """
    Return one line for each difference.

    A line has the path, the old value and the new value. What can't be compared is a difference, too.
    """
    blind = then.get("format") != now.get("format")
    compared = then if blind else {**then, **now}
    names = [name for name in compared if name not in {"format", "python", "unseen"}]
    found = [line for name in names for line in _differences(name, then.get(name), now.get(name), blind=blind)]
    # If an earlier format did not look there, it is not known to differ.
    unseen_now = () if blind and "unseen" in then else now.get("unseen", ())
    places = dict.fromkeys([*then.get("unseen", ()), *unseen_now])
    return [*found, *map(cannot_compare, places)]


def cannot_compare(place: str) -> str:
    """Return the line about an object that can't be compared."""
    return f"{place}: can't be compared, give it a `fingerprint` attribute"


def _differences(where: str, then: Any, now: Any, *, blind: bool) -> Iterator[str]:
    """Yield the differences at a place. If `blind`, `then` is of an earlier format, and may lack what `now` has."""
    if isinstance(then, dict) and isinstance(now, dict):
        before, after = cast("dict[str, Any]", then), cast("dict[str, Any]", now)
        for name in dict.fromkeys([*before, *after]):
            missing = name not in before or name not in after
            is_ignored = name.startswith(_NOT_MISSED) or (blind and (name not in before or name in _ONCE_DESCRIBED))
            if not (missing and is_ignored):
                yield from _differences(f"{where}.{name}", before.get(name), after.get(name), blind=blind)
    elif isinstance(then, list) and isinstance(now, list):
        pairs = zip_longest(cast("Iterable[Any]", then), cast("Iterable[Any]", now))
        for place, (was, is_now) in enumerate(pairs):
            yield from _differences(f"{where}[{place}]", was, is_now, blind=blind)
    elif _differ(then, now) and not _is_unknown(where, then, now) and not (blind and _is_closer_look(then, now)):
        yield f"{where}: was {_shown(cast('object', then))}, is {_shown(cast('object', now))}"


def _differ(then: Any, now: Any) -> bool:
    """Return whether two values differ, or their types: True is not 1."""
    return type(then) is not type(now) or then != now


def _is_unknown(where: str, then: Any, now: Any) -> bool:
    """Return whether one of the runs did not know its number of items."""
    return where == "items" and None in (then, now)


def _is_closer_look(then: Any, now: Any) -> bool:
    """Return whether an earlier format described an object by its class or its text alone, or showed a secret."""
    described = cast("dict[str, Any]", now) if isinstance(now, dict) else {}
    return now == CHANGED or (
        isinstance(then, str)
        and (
            then in {described.get("class"), described.get("name")}
            or described == secret_digest(then)
            or ("annotated" in described and "Annotated[" in then)
        )
    )


def _shown(value: object) -> str:
    return (
        "not there" if value is None else quoted(value if isinstance(value, str) else canonical(value), _LONGEST_SHOWN)
    )
