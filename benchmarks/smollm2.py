"""
Measure strategies on a real language model, SmolLM2-135M-Instruct, which extracts payments from short notices.

Every answer is constrained to the schema of a pydantic class. It is valid if its name, date and amount are in the
notice, and right if they are the ones that were paid. The checks don't know what is right.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import anyio

from benchmarks.notices import NOTICES, Payment, prompt, requirements
from benchmarks.report import Check, Row, Section, Settings
from sampling import (
    Action,
    BaseSamplingStrategy,
    MajorityVotingStrategy,
    MultiTurnStrategy,
    Options,
    RejectionSamplingStrategy,
    SamplingResult,
)
from sampling.backends.llama import LlamaBackend

ONE_SHOT, REJECTION, REPAIR, VOTE = (
    "one-shot",
    "rejection, 3 × 3",
    "multi-turn repair, 4 deep",
    "majority vote, up to 5",
)
OPTIONS = Options(temperature=0.7, max_tokens=80, seed=1)
AT_ONCE = 4


def strategies() -> dict[str, BaseSamplingStrategy]:
    """Return the strategies by name."""
    return {
        ONE_SHOT: RejectionSamplingStrategy(),
        REJECTION: RejectionSamplingStrategy(loop_budget=3, concurrency_budget=3),
        REPAIR: MultiTurnStrategy(loop_budget=4),
        VOTE: MajorityVotingStrategy(_fields, concurrency_budget=5),
    }


def _fields(payment: object) -> tuple[str, str, float] | None:
    """Return what an answer votes for. One that can't be parsed is a text, and abstains."""
    return (payment.name, payment.date, payment.amount) if isinstance(payment, Payment) else None


@dataclass(frozen=True)
class Outcome:
    """The result of one call, and whether it is right."""

    valid: bool
    right: bool
    result: SamplingResult[Payment]


def run(settings: Settings) -> list[Section]:
    """Extract all payments with every strategy."""
    notices = NOTICES[:5] if settings.quick else NOTICES
    return [_section(anyio.run(partial(_outcomes, notices)))]


async def _outcomes(notices: Sequence[tuple[str, Payment]]) -> dict[str, list[Outcome]]:
    # One thread: on a busy machine, several wait for each other.
    async with LlamaBackend("smollm2", slots=8, context_tokens=1_024, threads=1) as backend:
        return {name: await _ask_all(strategy, notices, backend) for name, strategy in strategies().items()}


async def _ask_all(
    strategy: BaseSamplingStrategy, notices: Sequence[tuple[str, Payment]], backend: LlamaBackend
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    remaining = iter(notices)

    async def ask(left: Iterator[tuple[str, Payment]]) -> None:
        for notice, expected in left:
            action = Action(prompt(notice), Payment)
            result = await strategy.sample(action, None, backend, requirements(notice), options=OPTIONS)
            outcomes.append(Outcome(result.success, result.value == expected, result))

    async with anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(ask, remaining)
    return outcomes


def _section(outcomes: dict[str, list[Outcome]]) -> Section:
    one_shot = _share(outcomes[ONE_SHOT])
    rows = []
    for name, found in outcomes.items():
        times = [one.result.elapsed_s for one in found]
        values = {
            "valid": sum(one.valid for one in found),
            "right": sum(one.right for one in found),
            "attempts": statistics.fmean(len(one.result.attempts) for one in found),
            "tokens": statistics.fmean(one.result.usage.output_tokens for one in found),
            "prompt tokens": statistics.fmean(one.result.usage.input_tokens for one in found),
            "median s": statistics.median(times),
        }
        checks = () if name == ONE_SHOT else (Check("right − one-shot", _share(found) - one_shot, 0, at_least=True),)
        rows.append(Row(name, values, checks))
    title = (
        f"{len(outcomes[ONE_SHOT])} payments extracted by SmolLM2-135M-Instruct, temperature {OPTIONS.temperature:g}"
    )
    return Section(title, "answers that are valid and right, means for a payment", tuple(rows))


def _share(outcomes: Sequence[Outcome]) -> float:
    return statistics.fmean(one.right for one in outcomes)
