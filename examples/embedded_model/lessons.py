"""Training data: questions with answers, and conversations that repair a wrong answer."""

import random
from collections.abc import Iterator

from vocabulary import END, render, tokens_of

from sampling import MultiTurnStrategy, RepairTemplateStrategy
from sampling.backends.llama.models.arithmetic import Question, draw_question

__all__ = ["Lesson", "lessons", "repairs"]

Lesson = tuple[list[int], int]
"""The tokens of a conversation, and the start of its last answer. Only that answer is learned."""

RESTATED = 0.2
"""The share of repairs in one turn: the question is repeated together with the reasons."""

SLIPS = (-2, -1, -1, 1, 1, 2)
"""The possible errors of a column."""

SLIPS_IN_WRONG_ANSWERS = 0.11
"""The share of columns with an error, in a wrong answer."""


def lessons(draw: random.Random, count: int, *, slips: float) -> list[Lesson]:
    """Return questions with answers, in which a share of the columns is wrong."""
    return [
        _lesson([question.text], question.worked(_slips(draw, question, slips) if slips else {}))
        for question in _taught(draw, count)
    ]


def repairs(draw: random.Random, count: int) -> list[Lesson]:
    """Return conversations with a wrong answer first and a right one last."""
    return [_lesson(_talk(draw, question), question.worked()) for question in _taught(draw, count)]


def _taught(draw: random.Random, count: int) -> Iterator[Question]:
    while count:
        question = draw_question(draw)
        if not question.held_out:
            count -= 1
            yield question


def _talk(draw: random.Random, question: Question) -> list[str]:
    if draw.random() < RESTATED:
        reasons = _complaint(question, _wrong_answer(draw, question))
        return [RepairTemplateStrategy.template.replace("{action}", question.text).replace("{reasons}", reasons)]
    talk = [question.text]
    for _ in range(draw.choice((1, 1, 1, 1, 1, 2))):
        wrong = _wrong_answer(draw, question)
        talk += [wrong, MultiTurnStrategy.template.replace("{reasons}", _complaint(question, wrong))]
    return talk


def _complaint(question: Question, wrong: str) -> str:
    return f"- {question.check(wrong).reason}"


def _wrong_answer(draw: random.Random, question: Question) -> str:
    """Return an answer with wrong columns, or with a misread digit of the question."""
    while True:
        asked = question if draw.random() < 0.8 else _misread(draw, question)
        answer = asked.worked(_slips(draw, question, SLIPS_IN_WRONG_ANSWERS))
        if not question.is_right(answer):
            return answer


def _slips(draw: random.Random, question: Question, share: float) -> dict[int, int]:
    columns = max(len(str(question.left)), len(str(question.right)))
    return {column: draw.choice(SLIPS) for column in range(columns) if draw.random() < share}


def _misread(draw: random.Random, question: Question) -> Question:
    digits = list(str(question.left))
    digits[draw.randrange(len(digits))] = str(draw.randint(1, 9))
    left = int("".join(digits))
    return Question(max(left, question.right) if question.operator == "-" else left, question.operator, question.right)


def _lesson(talk: list[str], answer: str) -> Lesson:
    prompt = tokens_of(render(talk))
    return [*prompt, *tokens_of(answer, begin=False), END], len(prompt)
