"""What the model reads while it learns: questions with their answers, and talks in which the first answer was wrong."""

import random
from collections.abc import Iterator

from vocabulary import END, render, tokens_of

from sampling import MultiTurnStrategy, RepairTemplateStrategy
from sampling.backends.llama.models.arithmetic import Question, draw_question

__all__ = ["Lesson", "lessons", "repairs"]

Lesson = tuple[list[int], int]
"""The tokens of a whole talk, and where its last answer starts: only that is learned."""

RESTATED = 0.2
"""How many wrong answers are not talked about: the question is asked again with what was wrong."""

SLIPS = (-2, -1, -1, 1, 1, 2)
"""By how much a result is off where someone slips."""

SLIPS_IN_WRONG_ANSWERS = 0.11
"""In how many columns of an answer that is to be wrong."""


def lessons(draw: random.Random, count: int, *, slips: float) -> list[Lesson]:
    """Questions, and their answers, by a teacher who slips in such a share of the columns."""
    return [
        _lesson([question.text], question.worked(_slips(draw, question, slips) if slips else {}))
        for question in _taught(draw, count)
    ]


def repairs(draw: random.Random, count: int) -> list[Lesson]:
    """Questions that were answered wrongly at first, and then with care."""
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
    """Slip in a column, or mistake a digit of the question."""
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
