"""
The task of the embedded model: addition and subtraction, column by column.

    question = held_out(1)[0]
    result = await strategy.sample(question.text, None, LlamaBackend(), [question.requirement])

A question is always asked in the same words, `What is 347 + 286?`, and answered in one line that starts with the ones:
`7+6=13, 4+8+1=13, 3+2+1=6, so 633`. The model knows nothing else.
"""

import random
import re
import zlib
from collections.abc import Mapping
from itertools import zip_longest
from types import MappingProxyType
from typing import Literal, TypeAlias, cast, get_args

import attrs

from sampling._arguments import check_int, check_str, short_repr
from sampling.requirements import Requirement, Validation

__all__ = ["Question", "draw_question", "final_number", "held_out"]

Operator: TypeAlias = Literal["+", "-"]

_OPERATORS: tuple[Operator, ...] = get_args(Operator)
_HELD_OUT_ONE_IN = 5
_MOST_HELD_OUT = 100_000
_NO_SLIPS: Mapping[int, int] = MappingProxyType({})
_QUESTION = re.compile(r"What is (\d{1,4}) ([-+]) (\d{1,4})\?")
_STEP = re.compile(r"(\d{1,3}(?:[-+]\d{1,3}){1,2})=(\d{1,4})")
_NUMBER = re.compile(r"[-+]?\d+")
_LAST_NUMBER = re.compile(r"(-?\d{1,9})\D*$")


@attrs.frozen
class Question:
    """An arithmetic question."""

    left: int
    operator: Operator
    right: int

    def __attrs_post_init__(self) -> None:
        check_int("left", self.left, least=0)
        check_int("right", self.right, least=0)
        if self.operator not in _OPERATORS:
            raise ValueError(f"operator must be one of {', '.join(_OPERATORS)}, got {short_repr(self.operator)}")

    @classmethod
    def parse(cls, text: str) -> "Question":
        """Parse the text of a question."""
        match = _QUESTION.fullmatch(check_str("text", text).strip())
        if match is None:
            raise ValueError(f"text must be a question such as 'What is 47 + 38?', got {short_repr(text)}")
        left, operator, right = match.groups()
        return cls(int(left), cast("Operator", operator), int(right))

    @property
    def text(self) -> str:
        """The prompt for the model."""
        return f"What is {self}?"

    @property
    def answer(self) -> int:
        """The correct result."""
        return self.left + self.right if self.operator == "+" else self.left - self.right

    @property
    def held_out(self) -> bool:
        """True for the fixed fifth of all questions that the model was not trained on."""
        return zlib.crc32(str(self).encode()) % _HELD_OUT_ONE_IN == 0

    @property
    def requirement(self) -> Requirement:
        """
        A requirement for the correct result.

        Its reason names the first wrong step.
        """
        return Requirement(f"the last number is {self}", self.check)

    def check(self, text: str) -> Validation:
        """Check the result and the steps of an answer."""
        return Validation(self.is_right(text), _complaint(self, text), score=share_of_right_steps(text))

    def is_right(self, text: str) -> bool:
        """
        Return whether an answer ends in the correct number.

        The steps are not checked.
        """
        return final_number(text) == self.answer

    def worked(self, slips: Mapping[int, int] = _NO_SLIPS) -> str:
        """
        Return the answer in the format of the training data.

        `slips` adds a number to the result of a column, to produce an answer with mistakes.
        """
        steps, digits, carried = list[str](), list[str](), 0
        columns = _columns(self)
        for number, (upper, lower) in enumerate(columns):
            step, result = _step(self.operator, upper, lower, carried)
            result = max(0, result + slips.get(number, 0))
            steps.append(f"{step}={result}")
            carried = int(self.operator == "-" and upper - carried < lower) or result // 10
            digits.append(str(result if number == len(columns) - 1 else result % 10))
        return f"{', '.join(steps)}, so {int(''.join(reversed(digits)))}"

    def __str__(self) -> str:
        return f"{self.left} {self.operator} {self.right}"


def held_out(count: int, *, seed: int = 0) -> list[Question]:
    """
    Return distinct questions that the model was not trained on.

    The seed determines them. At most 100,000, because there are not many more.
    """
    check_int("count", count, least=1, most=_MOST_HELD_OUT)
    draw = random.Random(f"held out {check_int('seed', seed)}")  # noqa: S311 - questions, not secrets
    questions = dict[Question, None]()
    while len(questions) < count:
        question = draw_question(draw)
        if question.held_out:
            questions[question] = None
    return list(questions)


def draw_question(draw: random.Random) -> Question:
    """Return a random question of the kind that the model was trained on."""
    operator = draw.choice(_OPERATORS)
    numbers = [draw.randint(10, draw.choice((99, 999))) for _ in range(2)]
    if operator == "-":
        numbers.sort(reverse=True)
    return Question(numbers[0], operator, numbers[1])


def final_number(text: str) -> int | None:
    """Return the last number of an answer, if it has one."""
    match = _LAST_NUMBER.search(text)
    return None if match is None else int(match[1])


def share_of_right_steps(text: str) -> float:
    """
    Return the share of correct steps, from 0 to 1.

    The result is not checked.
    """
    steps = [_is_right_step(*step) for step in _STEP.findall(text)]
    return sum(steps) / len(steps) if steps else 0.0


def _columns(question: Question) -> list[tuple[int, int]]:
    """Return the pairs of digits in each column, the ones first."""
    left = [int(digit) for digit in reversed(str(question.left))]
    right = [int(digit) for digit in reversed(str(question.right))]
    return list(zip_longest(left, right, fillvalue=0))


def _step(operator: Operator, upper: int, lower: int, carried: int) -> tuple[str, int]:
    if operator == "-":
        upper -= carried
        if upper < lower:
            upper += 10
        return f"{upper}-{lower}", upper - lower
    return f"{upper}+{lower}" + (f"+{carried}" if carried else ""), upper + lower + carried


def _is_right_step(step: str, result: str) -> bool:
    return sum(int(number) for number in _NUMBER.findall(step)) == int(result)


def _complaint(question: Question, text: str) -> str:
    """Return the mistake and the question, which the model needs for its next attempt."""
    return f"{_mistake(question, text)}. {question.text}"


def _mistake(question: Question, text: str) -> str:
    for step, result in _STEP.findall(text):
        if not _is_right_step(step, result):
            return f"{step} is not {result}"
    number = final_number(text)
    return f"{question} is not {number}" if number is not None else "there is no number in it"
