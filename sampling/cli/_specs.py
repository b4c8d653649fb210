"""
Parse the values of `--backend`, `--strategy` and `--require`.

A value that can't be parsed raises a `ValueError` that lists the allowed ones.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias, cast

import attrs

from sampling import checks
from sampling._arguments import short_repr
from sampling.backends.llama.models.arithmetic import Question
from sampling.backends.simulated import SimulatedBackend
from sampling.errors import MissingExtra
from sampling.protocols import Backend
from sampling.requirements import Requirement
from sampling.strategies.best_of_n import BestOfNStrategy
from sampling.strategies.escalation import EscalationStrategy, Tier
from sampling.strategies.hedged import HedgedSamplingStrategy
from sampling.strategies.keys import number
from sampling.strategies.mbr import MBRStrategy
from sampling.strategies.multi_turn import MultiTurnStrategy
from sampling.strategies.rejection import RejectionSamplingStrategy
from sampling.strategies.repair_template import RepairTemplateStrategy
from sampling.strategies.voting import MajorityVotingStrategy
from sampling.strategy import BaseSamplingStrategy

__all__ = [
    "BACKENDS",
    "REQUIREMENTS",
    "STRATEGIES",
    "open_backend",
    "parse_backend",
    "parse_requirements",
    "parse_strategy",
]

BACKENDS = "llama, llama:FILE.gguf, openai:MODEL, openai:MODEL@URL, simulated or simulated:PASS_PROBABILITY"


def parse_backend(spec: str, *, send_env_key: bool = False) -> Backend:
    """
    Return the backend of a spec. Open it with `open_backend`.

    Args:
        spec: One of `BACKENDS`.

        send_env_key: Send OPENAI_API_KEY to the URL in the spec.
    """
    kind, _, rest = spec.partition(":")
    if kind == "llama":
        return _llama(rest)
    if kind == "openai" and rest:
        return _openai(rest, send_env_key=send_env_key)
    if kind == "simulated":
        return SimulatedBackend(pass_probability=_probability(rest) if rest else 1.0)
    raise ValueError(f"--backend must be {BACKENDS}, got {short_repr(spec)}")


def open_backend(backend: Backend) -> AbstractAsyncContextManager[object]:
    """Return a context manager that opens the backend, if needed."""
    if isinstance(backend, AbstractAsyncContextManager):
        return cast("AbstractAsyncContextManager[object]", backend)
    return nullcontext()


def _llama(path: str) -> Backend:
    try:
        from sampling.backends.llama import LlamaBackend  # noqa: PLC0415 - an extra: only those who name it need it
    except MissingExtra as missing:
        missing.hint = "Or use --backend simulated, a simulated server that needs no model."
        raise

    return LlamaBackend(path or None)


def _openai(rest: str, *, send_env_key: bool) -> Backend:
    from sampling.backends.openai import OpenAIBackend  # noqa: PLC0415 - an extra: only those who name it need it

    model, _, url = rest.partition("@")
    # Without a URL the key goes to OpenAI anyway. A URL gets it only if the user says so.
    return OpenAIBackend(url or None, model=model, send_env_key=send_env_key and bool(url))


def _probability(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"--backend simulated:PASS_PROBABILITY needs a number from 0 to 1, got {short_repr(text)}"
        ) from None


@attrs.frozen
class _Strategy:
    build: Callable[[int, int], BaseSamplingStrategy]
    """Builds the strategy from depth and breadth."""

    summary: str


def _builder(kind: type[BaseSamplingStrategy]) -> Callable[[int, int], BaseSamplingStrategy]:
    return lambda depth, breadth: kind(loop_budget=depth, concurrency_budget=breadth)


def _vote_for_numbers(depth: int, breadth: int) -> BaseSamplingStrategy:
    return MajorityVotingStrategy(number, loop_budget=depth, concurrency_budget=breadth)


def _escalation(depth: int, breadth: int) -> BaseSamplingStrategy:
    conversation = MultiTurnStrategy(loop_budget=depth, concurrency_budget=breadth)
    return EscalationStrategy([Tier(strategy=RejectionSamplingStrategy()), Tier(strategy=conversation)])


STRATEGIES: Mapping[str, _Strategy] = MappingProxyType(
    {
        "rejection": _Strategy(_builder(RejectionSamplingStrategy), "ask again until an answer is valid"),
        "multi-turn": _Strategy(_builder(MultiTurnStrategy), "tell the model what was wrong in the next turn"),
        "repair": _Strategy(_builder(RepairTemplateStrategy), "ask again with a list of what was wrong"),
        "majority": _Strategy(_builder(MajorityVotingStrategy), "keep the most common answer"),
        "majority-number": _Strategy(_vote_for_numbers, "keep the most common last number"),
        "mbr": _Strategy(_builder(MBRStrategy), "keep the answer that is most similar to the others"),
        "best-of-n": _Strategy(_builder(BestOfNStrategy), "keep the answer with the highest score"),
        "hedged": _Strategy(_builder(HedgedSamplingStrategy), "ask once, and again if that is slow or fails"),
        "escalation": _Strategy(_escalation, "ask once, then with full depth and breadth if that fails"),
    }
)
"""The strategies by their names in `--strategy`."""


def parse_strategy(name: str, *, depth: int = 1, breadth: int = 1) -> BaseSamplingStrategy:
    """Return the named strategy with this depth and breadth."""
    if name not in STRATEGIES:
        raise ValueError(f"--strategy must be one of {', '.join(STRATEGIES)}, got {short_repr(name)}")
    return STRATEGIES[name].build(depth, breadth)


_Make: TypeAlias = Callable[[str, str], Requirement]
"""Makes a requirement from the text after the colon and from the question."""


@attrs.frozen
class _Requirement:
    make: _Make
    usage: str
    """The syntax, for help texts."""


def _range(text: str) -> tuple[str, str]:
    low, dots, high = text.partition("..")
    if not dots or not (low or high):
        raise ValueError(f"give it as LEAST..MOST, either may be left out, got {short_repr(text)}")
    return low, high


def _number(rest: str, _question: str) -> Requirement:
    low, high = _range(rest) if rest else ("", "")
    return checks.number(at_least=float(low) if low else None, at_most=float(high) if high else None)


def _words(rest: str, _question: str) -> Requirement:
    low, high = _range(rest)
    return checks.length(min_words=int(low) if low else None, max_words=int(high) if high else None)


def _schema(path: str, _question: str) -> Requirement:
    try:
        schema = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"can't read {short_repr(path)}: {error.strerror}") from None
    return checks.json_schema(schema)


def _arithmetic(_rest: str, question: str) -> Requirement:
    return Question.parse(question).requirement


REQUIREMENTS: Mapping[str, _Requirement] = MappingProxyType(
    {
        "arithmetic": _Requirement(_arithmetic, "arithmetic"),
        "json": _Requirement(lambda _rest, _question: checks.json(), "json"),
        "number": _Requirement(_number, "number or number:LEAST..MOST"),
        "one-of": _Requirement(lambda rest, _question: checks.one_of(*rest.split(",")), "one-of:A,B,C"),
        "python": _Requirement(lambda _rest, _question: checks.python_parses(), "python"),
        "regex": _Requirement(lambda rest, _question: checks.matches(rest), "regex:PATTERN"),
        "schema": _Requirement(_schema, "schema:FILE.json"),
        "words": _Requirement(_words, "words:LEAST..MOST"),
    }
)
"""The requirements by their names in `--require`."""


def parse_requirements(specs: Sequence[str], question: str) -> list[Requirement]:
    """Return the requirements of specs."""
    return [_parse_requirement(spec, question) for spec in specs]


def _parse_requirement(spec: str, question: str) -> Requirement:
    name, _, rest = spec.partition(":")
    if name in REQUIREMENTS:
        try:
            return REQUIREMENTS[name].make(rest, question)
        except ValueError as error:
            raise ValueError(f"--require {name}: {error}") from None
    # A sentence for a judge has a space. A misspelled name has none, and is an error.
    if " " in spec.strip():
        return Requirement(spec)
    choices = "; ".join(one.usage for one in REQUIREMENTS.values())
    raise ValueError(f"--require must be {choices}; or a sentence for the model to judge, got {short_repr(spec)}")
