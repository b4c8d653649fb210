"""Requirements: accepted types, descriptions and verdicts."""

import functools

import pytest

from sampling import RejectionSamplingStrategy, Requirement, Validation
from sampling.requirements import as_requirement
from sampling.testing import ScriptedBackend


def has_two_lines(text):
    return text.count("\n") == 1


def documented(text):
    """Says hello.

    And more.
    """
    return "hello" in text


class Checker:
    def __call__(self, text):
        return True

    def method_of_it(self, text):
        return True


@pytest.mark.parametrize(
    ("check", "description"),
    [
        (has_two_lines, "has two lines"),
        (documented, "Says hello."),
        (lambda text: text.count(",") == 2, "text.count(',') == 2"),
        (str.isdigit, "isdigit"),
        (Checker(), "Checker"),
        (Checker().method_of_it, "method of it"),
        (functools.partial(has_two_lines), "partial"),
        ("is polite", "is polite"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_callable_is_described_by_what_it_says_of_itself(check, description):
    """The description is the docstring, the source of a lambda, or the name."""
    assert description == as_requirement("reqs", check).description


def test_two_lambdas_on_one_line_are_told_apart():
    """The columns of their code identify them."""
    one, two = [lambda text: "a" in text, lambda text: "b" in text]
    assert ["'a' in text", "'b' in text"] == [as_requirement("reqs", check).description for check in (one, two)]


def test_a_lambda_without_source_is_named_by_its_place():
    """A file that can't be read is not an error."""
    check = eval("lambda text: True")  # noqa: S307 - the way to a lambda without a file
    assert "the check at <string>:1" == as_requirement("reqs", check).description


def takes_text(text): ...
def takes_view(text, view): ...
def takes_named_view(text, view=None): ...
def takes_default(text, limit=3): ...
def takes_required(text, other): ...
def takes_everything(*args): ...


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        (takes_text, False),
        (takes_view, True),
        (takes_named_view, True),
        (takes_default, False),
        (takes_required, True),
        (takes_everything, False),
        (functools.partial(takes_view, view=None), False),
        (functools.partial(takes_required), True),
        (Checker(), False),
        (Checker().method_of_it, False),
        (bool, False),
        (str.isdigit, False),
    ],
)
def test_the_view_is_given_to_those_who_take_it(check, expected):
    """A check gets the view if its second parameter is required or named `view`."""
    assert expected is Requirement("x", check=check).takes_view


def test_the_view_shows_value_context_and_generation(run):
    """A check is called as `check(text, view)`."""
    seen = []

    def check(text, view):
        seen.append((view.value, view.generation.finish_reason, len(view.context)))
        return True

    async def main():
        return await RejectionSamplingStrategy().sample("q", None, ScriptedBackend(["x"]), [check])

    run(main)
    assert [("x", "stop", 2)] == seen


def test_a_verdict_carries_its_requirement():
    """Every validation has its requirement."""
    requirement = Requirement("is short", check=len)
    for verdict in (True, (True, "fine"), Validation(True, "fine", 0.5)):
        assert requirement is requirement.read_verdict(verdict).requirement
    assert "is short" == requirement.read_verdict(False).complaint
    assert "because" == requirement.read_verdict((False, "because")).complaint
