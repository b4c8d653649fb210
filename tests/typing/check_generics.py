"""What a type checker must be able to tell: mypy and pyright run over this file, nobody executes it."""

from typing import Any, assert_type

from sampling import (
    Action,
    Attempt,
    BaseSamplingStrategy,
    Context,
    Generation,
    Hooks,
    IterationFinished,
    LoopStarted,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    Request,
    Requirement,
    SamplingResult,
    Slice,
    Validation,
    View,
)


async def answers_text(request: Request) -> str:
    return request.messages[-1].content


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


def requirements_take_every_kind_of_check() -> list[Requirement]:
    return [
        Requirement("a", check=plain),
        Requirement("b", check=awaited, timeout_s=1.0),
        Requirement("c", check=lambda text: Validation(True, score=1.0)),
        Requirement("judged"),
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
