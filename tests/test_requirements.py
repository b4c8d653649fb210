"""Requirements: accepted types, descriptions and verdicts."""

import contextlib
import functools
import linecache
import os
import re
import subprocess
import sys

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
        (functools.partial(has_two_lines), "has two lines"),
        (functools.partial(lambda limit, text: len(text) < limit, 3), "len(text) < limit"),
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


def test_a_lambda_inside_of_a_lambda_is_told_apart():
    """The outer one is on the same line, and contains it. So does a default value."""
    make = lambda: [lambda text: "c" in text]  # noqa: E731 - that is what is tested
    assert "'c' in text" == as_requirement("reqs", make()[0]).description
    outer = lambda text, inner=lambda text: "d" in text: inner(text)  # noqa: E731
    assert "'d' in text" == as_requirement("reqs", outer.__defaults__[0]).description
    assert "inner(text)" == as_requirement("reqs", outer).description


def test_a_lambda_of_several_lines_and_with_a_closure_is_found():
    """Its whole body is the description, on one line."""
    limit = 20

    checks = [lambda text: len(text) < limit and any(
        mark in text for mark in ".!"
    ), lambda text: len(text) > limit]  # fmt: skip
    found = [as_requirement("reqs", check).description for check in checks]
    assert ["len(text) < limit and any((mark in text for mark in '.!'))", "len(text) > limit"] == found


@pytest.mark.parametrize(
    ("source", "description"),
    [
        ("lambda text: text.count(',') == 2", "passes a check in Python that uses count, ',', 2"),
        ("lambda text: len(text) < 20", "passes a check in Python that uses len, 20"),
        ("lambda text: bool(text)", "passes a check in Python that uses bool"),
        ("lambda text: not text", "passes a check in Python"),
    ],
)
def test_a_lambda_without_source_is_described_by_what_it_uses(source, description):
    """A model can't act on a place in a file that it does not see."""
    check = eval(source)  # noqa: S307 - the way to a lambda without a file
    assert description == as_requirement("reqs", check).description


def test_the_source_of_another_lambda_is_not_taken(monkeypatch):
    """A file that changed after it was loaded has other code at the same place."""
    monkeypatch.setitem(linecache.cache, "<changed>", (1, None, ["f = lambda text: len(text) < 3\n"], "<changed>"))
    names = {}
    exec(compile("f = lambda text: len(text) < 2\n", "<changed>", "exec"), names)  # noqa: S102 - as a notebook does
    assert "passes a check in Python that uses len, 2" == as_requirement("reqs", names["f"]).description


TYPED = """
from sampling.requirements import as_requirement
limit = 20
print("1:", as_requirement("reqs", lambda text: len(text) < limit).description)
print("2:", [as_requirement("reqs", check).description for check in (lambda t: "a" in t, lambda t: "b" in t)])
def make(least):
    return lambda text: (
        len(text) > least)

print("3:", as_requirement("reqs", make(3)).description)
exit()
"""
SHOWN = ["1: len(text) < limit", "2: [\"'a' in t\", \"'b' in t\"]", "3: len(text) > least"]


def answers(output):
    return re.findall(r"^(?:\S+ )*?([123]: .*?)\r?$", output, re.MULTILINE)


def test_a_lambda_of_a_command_is_described_by_its_source():
    """`python -c` has the source in its arguments."""
    command = [sys.executable, "-c", TYPED]
    assert SHOWN == answers(subprocess.run(command, capture_output=True, text=True, check=True).stdout)  # noqa: S603


@pytest.mark.parametrize("module", [[], ["-m", "asyncio"]], ids=["python", "python -m asyncio"])
def test_a_lambda_that_is_typed_is_described_by_its_source(module):
    """A terminal, with a plain Python and with `python -m asyncio`."""
    pytest.importorskip("readline")
    shown = answers(type_into_terminal([sys.executable, *module], TYPED.strip()))
    # `python -m asyncio` of Python 3.13.0 does not read a block of several lines in a plain terminal.
    complete = not module or sys.version_info[:2] != (3, 13)
    assert SHOWN[: 3 if complete else len(shown)] == shown
    assert len(shown) >= 2


def type_into_terminal(command, text):
    """Run a command in a pseudo-terminal, type a text, and return what is shown."""
    ours, theirs = os.openpty()
    # The dumb terminal and the variable ask for plain lines, without colours and without an editor.
    env = {**os.environ, "TERM": "dumb", "PYTHON_BASIC_REPL": "1", "PYTHON_COLORS": "0"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True):  # noqa: S603
        os.close(theirs)
        os.write(ours, text.encode() + b"\n")
        shown = b""
        # Linux raises an OSError at the end.
        with contextlib.suppress(OSError):
            while piece := os.read(ours, 4096):
                shown += piece
    os.close(ours)
    return shown.decode()


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


@pytest.mark.parametrize(
    "check",
    [
        lambda: True,
        lambda text, view, more: True,
        lambda text, *, strict: True,
        functools.partial(takes_view, "a", "b"),
    ],
)
def test_a_check_that_cannot_be_called_is_refused_before_anything_is_paid_for(check):
    """It takes the text, or the text and a view. Else every attempt would fail with the same TypeError."""
    with pytest.raises(TypeError, match="check must be a function of the text, or of the text and a view"):
        Requirement("x", check=check)


@pytest.mark.parametrize(
    "check", [lambda *parts: True, lambda text, view, more=1: True, lambda text, *, strict=1: True]
)
def test_parameters_with_defaults_do_not_matter(check):
    """A check may have parameters with defaults and variable parameters."""
    assert Requirement("x", check=check)


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
    assert "is short: because" == requirement.read_verdict((False, "because")).complaint
