"""Answers that would take exponential or quadratic time to validate are refused in bounded time."""

import sys
from typing import Optional, Union

import anyio
import pytest
from pydantic import BaseModel

from sampling import Action, RejectionSamplingStrategy, Requirement, checks
from sampling._engine.validation import PartialText
from sampling._schemas.validation import Schema
from sampling.testing import ScriptedBackend


class Left(BaseModel):
    inside: "Optional[Union[Left, Right]]" = None  # noqa: UP007, UP045 - as users write it
    left: int


class Right(BaseModel):
    inside: "Optional[Union[Left, Right]]" = None  # noqa: UP007, UP045
    right: int


Left.model_rebuild()

NESTED = '{"inside":' * 30 + "{}" + "}" * 30
"""Every level doubles the work: years."""

TREE = {"anyOf": [{"properties": {"inside": {"$ref": "#"}}, "required": ["a"]}] * 2}
MIXED = "[" + ",".join(['"a"', "1", "null"] * 20_000) + ',{"a": 1}]'
"""Items that can't be sorted, so the usual way compares all pairs."""


@pytest.mark.parametrize("requirement", [checks.model(Left), checks.json_schema(TREE)], ids=["model", "json_schema"])
async def test_an_answer_that_takes_too_long_is_invalid(anyio_backend, requirement):
    """It fails with a reason, and the event loop goes on meanwhile."""
    ticks = 0

    async def watch():
        nonlocal ticks
        while True:
            await anyio.sleep(0.001)
            ticks += 1

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        backend = ScriptedBackend([NESTED])
        result = await RejectionSamplingStrategy().sample("?", None, backend, [requirement])
        group.cancel_scope.cancel()
    [complaint] = result.best.complaints
    assert complaint.endswith(": it takes too long to check: make it shorter, with less nesting")
    assert ticks > 5


async def test_a_parser_that_takes_too_long_fails(anyio_backend):
    """An action with such a class is not parsed for years either."""
    result = await RejectionSamplingStrategy().sample(Action("?", Left), None, ScriptedBackend([NESTED]))
    assert not result.success
    assert "it takes too long to check" in result.best.complaints[0]


async def test_ordinary_answers_of_such_a_class_are_read(anyio_backend):
    """Nested answers that fit are objects of the class."""
    text = '{"left": 1, "inside": {"right": 2, "inside": {"left": 3}}}'
    result = await RejectionSamplingStrategy().sample(Action("?", Left), None, ScriptedBackend([text]))
    assert Left(left=1, inside=Right(right=2, inside=Left(left=3))) == result.value


@pytest.mark.parametrize(
    ("text", "unique"),
    [
        ("[1, 2]", True),
        ("[1, true, 0, false]", True),
        ("[1, 1.0]", False),
        ('[{"a": 1, "b": 2}, {"b": 2.0, "a": 1}]', False),
        ('["a", "a"]', False),
        ("[[1], [1, 1]]", True),
        ("[]", True),
        (MIXED, False),
    ],
)
def test_unique_items_are_compared_in_linear_time(run, text, unique):
    """As JSON compares: 1 equals 1.0 and is not true, and the order of keys does not matter."""
    requirement = checks.json_schema({"type": "array", "uniqueItems": True})
    result = run(RejectionSamplingStrategy().sample, "?", None, ScriptedBackend([text]), [requirement])
    assert unique is result.success


def test_partial_checks_look_at_a_linear_number_of_characters():
    """Twice the text takes about twice the work, however small its pieces are."""

    def looked_at(pieces):
        seen = 0

        def look(text):
            nonlocal seen
            seen += len(text)
            return True

        text = PartialText([Requirement("is looked at", lambda text: True, partial=look)])
        for _ in range(pieces):
            text.add("word ")
        return seen

    assert looked_at(40_000) < 2.2 * looked_at(20_000)


def test_short_texts_are_checked_after_every_piece():
    """A stream is cut off as soon as possible."""
    seen = []
    text = PartialText([Requirement("is seen", lambda text: True, partial=lambda text: seen.append(text) or True)])
    for piece in "abc":
        text.add(piece)
    assert ["a", "ab", "abc"] == seen


def calls_of(function):
    """Return how many Python functions are called."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls


def test_the_work_for_unique_items_is_linear():
    """Objects can't be sorted, so the usual way compares every pair: twice the items would be four times the calls."""
    schema = Schema({"type": "array", "uniqueItems": True})

    def work(items):
        return calls_of(lambda: schema.problems([{"a": number} for number in range(items)]))

    assert work(400) < 2.5 * work(200)
