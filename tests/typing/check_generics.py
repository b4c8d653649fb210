"""Types that mypy and pyright must infer. This file is checked and never executed."""

import dataclasses
from typing import Any, assert_type

import attrs

from sampling import (
    Action,
    Attempt,
    BaseSamplingStrategy,
    Context,
    Event,
    Generation,
    Hooks,
    IterationFinished,
    LoopStarted,
    MultiTurnStrategy,
    Options,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Request,
    Requirement,
    SamplingResult,
    Slice,
    Validation,
    View,
    checks,
)
from sampling.strategies import History


async def answers_text(request: Request) -> str:
    return request.messages[-1].text


class Answers:
    async def generate(self, request: Request) -> Generation:
        return Generation("text")


def plain(text: str) -> bool:
    return bool(text)


async def awaited(text: str, view: View) -> tuple[bool, str | None]:
    return view.value is not None, None


async def the_type_goes_from_the_action_to_the_value() -> None:
    strategy = RejectionSamplingStrategy(loop_budget=2)
    text = await strategy.sample("q", None, answers_text)
    assert_type(text, SamplingResult[str])
    assert_type(text.value, str | None)
    assert_type(text.unwrap(), str)
    number = await strategy.sample(Action("n", int), Context(), Answers(), [plain, awaited, "is even"])
    assert_type(number, SamplingResult[int])
    assert_type(number.unwrap(), int)
    assert_type(number.slices, tuple[Slice[int], ...])
    assert_type(strategy.sample_sync(Action("x", float), None, Answers()), SamplingResult[float])
    assert_type(strategy.sample_sync("x", None, Answers()), SamplingResult[str])
    assert_type(Action("x"), Action[str])


@attrs.frozen
class AttrsFlight:
    number: str
    seats: int


@dataclasses.dataclass
class DataFlight:
    number: str
    seats: int


async def the_type_goes_from_a_class_to_the_value() -> None:
    strategy = RejectionSamplingStrategy()
    assert_type((await strategy.sample(Action("q", AttrsFlight), None, Answers())).value, AttrsFlight | None)
    assert_type((await strategy.sample(Action("q", DataFlight), None, Answers())).unwrap(), DataFlight)
    assert_type(Action("q", list[AttrsFlight]), Action[list[AttrsFlight]])
    assert_type(Action("q", dict[str, DataFlight]).with_text("again"), Action[dict[str, DataFlight]])
    assert_type(Action("q", str.split, schema={"type": "string"}), Action[list[str]])
    assert_type(Action("q", checks.unfenced), Action[str])


def requirements_are_ready_made() -> list[Requirement]:
    return [
        checks.judge("is polite", backend=Answers(), at_least=7),
        checks.judge("is polite", backend=answers_text),
        checks.all_of(plain, awaited, "is even", checks.length(max_words=5)),
        checks.weighted([(plain, 1), ("is even", 2.5)]),
        checks.similar_to("a", similarity=checks.rouge_l),
    ]


async def asks(text: str, view: View) -> bool:
    generation = await view.ask([], backend=answers_text, options=Options(seed=1))
    return generation.text == text


def histories_are_short() -> list[BaseSamplingStrategy]:
    return [
        MultiTurnStrategy(history="best"),
        RepairTemplateStrategy(history=3),
        MultiTurnStrategy(history=History(2, max_tokens=100, count_tokens=len)),
    ]


def requirements_take_every_kind_of_check() -> list[Requirement]:
    return [
        Requirement("a", check=plain),
        Requirement("b", check=awaited, timeout_s=1.0),
        Requirement("c", check=lambda text: Validation(True, score=1.0)),
        Requirement("judged"),
        Requirement("asks a model", asks, judged=True),
    ]


hooks = Hooks()


@hooks.on(LoopStarted)
async def on_start(event: LoopStarted) -> LoopStarted:
    return event


@hooks.on(IterationFinished, critical=True)
def on_end(event: IterationFinished) -> None:
    assert_type(event.slice, Slice[Any])


class Own(MultiTurnStrategy):
    def done(self, slices: "Any") -> bool:
        return len(slices) > 3


def decisions_are_generic(strategy: BaseSamplingStrategy, history: list[Slice[int]]) -> None:
    assert_type(strategy.repair(history), Attempt[int])
    assert_type(strategy.select(history), Slice[int])


async def a_stream_has_the_type_of_its_action() -> None:
    strategy = RejectionSamplingStrategy()
    async with strategy.stream("q", None, answers_text) as texts:
        async for event in texts:
            assert_type(event, Event)
    assert_type(texts.result, SamplingResult[str])
    async with strategy.stream(Action("n", int), None, Answers(), [plain]) as numbers:
        pass
    assert_type(numbers.result, SamplingResult[int])
