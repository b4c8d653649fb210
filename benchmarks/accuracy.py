"""
Measure the accuracy of strategies with a weak model.

The model is the embedded one, on llama.cpp, with 200 questions that it was not trained on.
A single sample at temperature 1 must be right 35 to 75 times out of 100, or strategies could not differ.
Accuracy is that of the final answer, whether or not the strategy checked it.
"""

from __future__ import annotations

import zlib
from functools import partial

import anyio

from benchmarks.report import Check, Row, Section, Settings
from sampling import Attempt, MajorityVotingStrategy, Options
from sampling.backends.llama import LlamaBackend
from sampling.backends.llama.models.arithmetic import held_out
from sampling.cli._demo_strategies import DemoStrategy, Score, demo_strategies, score_strategy
from sampling.strategies.keys import number

QUESTIONS = 200
VOTES = 9


def _same_draws(plan: Attempt[str], subsample: int, attempt: int) -> Attempt[str]:
    """
    Give every draw its own seed.

    So all votes get the same answers, and differ only in how many of them they count.
    """
    seed = zlib.crc32(f"{plan.action.text} {subsample} {attempt}".encode()) % 2**31
    return Attempt(plan.action, plan.context, (plan.options or Options()).overlaid(Options(seed=seed)))


def _vote(name: str, how: str, **settings: object) -> DemoStrategy:
    strategy = MajorityVotingStrategy(number, concurrency_budget=VOTES, variation=_same_draws, **settings)
    return DemoStrategy(f"majority of {VOTES}, {name}", how, strategy, checked=False)


FIXED = _vote("fixed", "all of them", early_stop=False)
CERTAIN = _vote("certain", "until it can't change")
# The lowest certainty that costs no accuracy: three equal answers end the vote. If two did, it would take half of the
# tokens, but lose 1 to 2 points. This takes 0.59 to 0.63 of them, depending on the questions.
ADAPTIVE = _vote("adaptive", "until it is 85 % certain", certainty=0.85)


def run(settings: Settings) -> list[Section]:
    """Ask all questions with every strategy."""
    scores = anyio.run(partial(_scores, 50 if settings.quick else QUESTIONS))
    return [_accuracy(scores)]


async def _scores(questions: int) -> dict[str, Score]:
    others = [way for way in demo_strategies() if way.name != "majority vote"]
    async with LlamaBackend(context_tokens=1_024) as backend:
        return {
            way.name: await score_strategy(way, held_out(questions), backend)
            for way in (*others, FIXED, CERTAIN, ADAPTIVE)
        }


def _accuracy(scores: dict[str, Score]) -> Section:
    one_shot = scores["one-shot"]
    fixed, adaptive = scores[FIXED.name], scores[ADAPTIVE.name]
    checks = {
        one_shot.name: (
            Check("right, least", one_shot.accuracy, 0.35, at_least=True),
            Check("right, most", one_shot.accuracy, 0.75),
        ),
        "rejection": (Check("right, least", scores["rejection"].accuracy, 0.97, at_least=True),),
        fixed.name: (Check("more than one-shot", fixed.accuracy - one_shot.accuracy, 0.08, at_least=True),),
        adaptive.name: (
            Check("less than fixed", round(fixed.accuracy - adaptive.accuracy, 6), 0.01),
            Check("tokens ÷ fixed", adaptive.output_tokens / fixed.output_tokens, 0.6),
        ),
    }
    return Section(
        f"{one_shot.questions} questions on the embedded model, temperature 1",
        "share that is right, time to an answer, tokens for a question",
        tuple(_row(score, checks.get(name, ())) for name, score in scores.items()),
    )


def _row(score: Score, checks: tuple[Check, ...]) -> Row:
    values = {
        "right": score.accuracy,
        "p50 ms": 1_000 * score.p50_s,
        "p95 ms": 1_000 * score.p95_s,
        "tokens": score.output_tokens,
        "prompt tokens": score.input_tokens,
        "requests": score.requests,
    }
    return Row(score.name, values, checks)
