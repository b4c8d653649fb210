"""
What the flags of the command line mean: `--backend`, `--strategy` and `--require`.

Each is read here for all commands. What can't be read is a `ValueError` that says what can.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias, cast

import attrs

from sampling import checks
from sampling._arguments import shown
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

__all__ = ["BACKENDS", "REQUIREMENTS", "STRATEGIES", "backend_of", "opened", "requirements_of", "strategy_of"]

BACKENDS = "llama, llama:FILE.gguf, openai:MODEL, openai:MODEL@URL, simulated or simulated:PASS_PROBABILITY"


def backend_of(spec: str, *, send_env_key: bool = False) -> Backend:
    """
    Make the backend that a spec names; `opened` opens it.

    Args:
        spec: One of `BACKENDS`.

        send_env_key: Whether OPENAI_API_KEY may go to the URL that the spec names.
    """
    kind, _, rest = spec.partition(":")
    if kind == "llama":
        return _llama(rest)
    if kind == "openai" and rest:
        return _openai(rest, send_env_key=send_env_key)
    if kind == "simulated":
        return SimulatedBackend(pass_probability=_probability(rest) if rest else 1.0)
    raise ValueError(f"--backend must be {BACKENDS}, got {shown(spec)}")


def opened(backend: Backend) -> AbstractAsyncContextManager[object]:
    """Open a backend for a while, if it is one that can be opened."""
    if isinstance(backend, AbstractAsyncContextManager):
        return cast("AbstractAsyncContextManager[object]", backend)
    return nullcontext()


def _llama(path: str) -> Backend:
    try:
        from sampling.backends.llama import LlamaBackend  # noqa: PLC0415 - an extra: only those who name it need it
    except MissingExtra as missing:
        missing.hint = "Or say --backend simulated, a model server that needs nothing and knows nothing."
        raise

    return LlamaBackend(path or None)


def _openai(rest: str, *, send_env_key: bool) -> Backend:
    from sampling.backends.openai import OpenAIBackend  # noqa: PLC0415 - an extra: only those who name it need it

    model, _, url = rest.partition("@")
    return OpenAIBackend(url or None, model=model, send_env_key=send_env_key and bool(url))


def _probability(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"--backend simulated:PASS_PROBABILITY needs a number from 0 to 1, got {shown(text)}"
        ) from None


@attrs.frozen
class _Strategy:
    build: Callable[[int, int], BaseSamplingStrategy]
    """Takes depth and breadth."""

    summary: str


def _plain(kind: type[BaseSamplingStrategy]) -> Callable[[int, int], BaseSamplingStrategy]:
    return lambda depth, breadth: kind(loop_budget=depth, concurrency_budget=breadth)


def _vote_for_numbers(depth: int, breadth: int) -> BaseSamplingStrategy:
    return MajorityVotingStrategy(number, loop_budget=depth, concurrency_budget=breadth)


def _escalation(depth: int, breadth: int) -> BaseSamplingStrategy:
    conversation = MultiTurnStrategy(loop_budget=depth, concurrency_budget=breadth)
    return EscalationStrategy([Tier(strategy=RejectionSamplingStrategy()), Tier(strategy=conversation)])


STRATEGIES: Mapping[str, _Strategy] = MappingProxyType(
    {
        "rejection": _Strategy(_plain(RejectionSamplingStrategy), "ask again until an answer is valid"),
        "multi-turn": _Strategy(_plain(MultiTurnStrategy), "tell the model, as the next turn, what was wrong"),
        "repair": _Strategy(_plain(RepairTemplateStrategy), "ask again, and say what was wrong with the last answer"),
        "majority": _Strategy(_plain(MajorityVotingStrategy), "keep the answer that most of them give"),
        "majority-number": _Strategy(_vote_for_numbers, "keep the number that most answers end with"),
        "mbr": _Strategy(_plain(MBRStrategy), "keep the answer that is most like all the others"),
        "best-of-n": _Strategy(_plain(BestOfNStrategy), "keep the answer that the requirements score highest"),
        "hedged": _Strategy(_plain(HedgedSamplingStrategy), "ask once, and once more where that is slow or has failed"),
        "escalation": _Strategy(_escalation, "ask once, and with all depth and breadth only if that fails"),
    }
)
"""The strategies by the names that `--strategy` takes."""


def strategy_of(name: str, *, depth: int = 1, breadth: int = 1) -> BaseSamplingStrategy:
    """Make the strategy of that name, `depth` attempts deep and `breadth` subsamples wide."""
    if name not in STRATEGIES:
        raise ValueError(f"--strategy must be one of {', '.join(STRATEGIES)}, got {shown(name)}")
    return STRATEGIES[name].build(depth, breadth)


_Make: TypeAlias = Callable[[str, str], Requirement]
"""Makes a requirement of what stands after its name, and of the question."""


@attrs.frozen
class _Requirement:
    make: _Make
    usage: str
    """How it is written."""


def _range(text: str) -> tuple[str, str]:
    low, dots, high = text.partition("..")
    if not dots or not (low or high):
        raise ValueError(f"give it as LEAST..MOST, and leave out one of them for no limit, got {shown(text)}")
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
        raise ValueError(f"can't read {shown(path)}: {error.strerror}") from None
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
"""The requirements by the names that `--require` takes."""


def requirements_of(specs: Sequence[str], question: str) -> list[Requirement]:
    """Make the requirements that specs name; what is no name but has a space in it, is a sentence for a judge."""
    return [_requirement_of(spec, question) for spec in specs]


def _requirement_of(spec: str, question: str) -> Requirement:
    name, _, rest = spec.partition(":")
    if name in REQUIREMENTS:
        try:
            return REQUIREMENTS[name].make(rest, question)
        except ValueError as error:
            raise ValueError(f"--require {name}: {error}") from None
    if " " in spec.strip():
        return Requirement(spec)
    choices = "; ".join(one.usage for one in REQUIREMENTS.values())
    raise ValueError(f"--require must be {choices}; or a sentence for the model to judge, got {shown(spec)}")
