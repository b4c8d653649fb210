"""Checks of Markdown, tool calls, imports and groundedness."""

import pytest

from sampling import Context, Generation, Message, Options, RejectionSamplingStrategy, Tool, checks
from sampling.checks.markup import _Structure
from sampling.messages import ToolCall
from sampling.testing import ScriptedBackend

PAGE = """# Rivers

- Rhine
- Elbe
1. Main

## Lengths ##

| river | km |
|-------|---:|
| Rhine | 1233 |

```python
# no heading
- no item
```
"""


def verdict(run, requirement, answer, **arguments):
    """Return whether an answer passes, and the reasons if not."""
    backend = ScriptedBackend([answer])
    options = Options(tools=[Tool("weather", "Tell the weather.", {"type": "object"})])
    result = run(RejectionSamplingStrategy().sample, "?", None, backend, [requirement], options=options, **arguments)
    return result.success, result.best.complaints


class TestMarkdown:
    @pytest.mark.parametrize(
        "wanted",
        [
            {"headings": ["rivers", "Lengths"]},
            {"min_items": 3, "max_items": 3},
            {"table": True, "code_block": True},
            {},
        ],
    )
    def test_a_page_with_this_structure_passes(self, run, wanted):
        """Text in a code block does not count."""
        assert (True, ()) == verdict(run, checks.markdown(**wanted), PAGE)

    @pytest.mark.parametrize(
        ("wanted", "text", "reason"),
        [
            ({"headings": ["Lengths", "Rivers"]}, PAGE, "the heading 'Rivers' is missing, or not in its place"),
            ({"min_items": 4}, PAGE, "it has 3 list items instead of at least 4"),
            ({"max_items": 2}, PAGE, "it has 3 list items instead of at most 2"),
            ({"table": True}, "none", "it has no table"),
            ({"code_block": True}, "none", "it has no code block"),
            ({}, "```python\nx = 1", "a code block is not closed: end it with a line of ```"),
        ],
    )
    def test_a_failure_says_what_is_missing(self, run, wanted, text, reason):
        """The reason names the fix."""
        passed, complaints = verdict(run, checks.markdown(**wanted), text)
        assert not passed
        assert reason in complaints[0]

    @pytest.mark.parametrize("text", ["|-" * 200_000, "# " * 200_000, "`" * 500_000, "\n" * 500_000, "- " * 300_000])
    def test_hostile_texts_take_linear_time(self, run, text):
        """It ends, whatever the answer is."""
        verdict(run, checks.markdown(headings=["x"], table=True), text)


def calling(*calls):
    """An answer with these calls."""
    return Generation("", tool_calls=tuple(ToolCall(str(n), *call) for n, call in enumerate(calls)))


class TestToolCalls:
    SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}  # noqa: RUF012

    def test_a_call_that_fits_passes(self, run):
        """By name and by the schema of its arguments."""
        requirement = checks.tool_calls("weather", schemas={"weather": self.SCHEMA})
        assert (True, ()) == verdict(run, requirement, calling(("weather", '{"city": "Bonn"}')))

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (Generation("It rains."), "it calls 0 tools instead of at least 1: call one of the tools weather"),
            (calling(("time", "{}")), "there is no tool 'time': call one of weather"),
            (calling(("weather", "{city}")), "the arguments of weather are not JSON"),
            (calling(("weather", "[1]")), "the arguments of weather must be a JSON object"),
            (
                calling(("weather", "{}")),
                "the arguments of weather do not match its schema: at the top level: 'city' is a required",
            ),
            (calling(*[("weather", "{}")] * 3), "it calls 3 tools instead of at most 2: call fewer"),
            (calling(("weather", "[" * 100_000)), "the arguments of weather are not JSON"),
        ],
    )
    def test_a_failure_says_what_is_wrong(self, run, answer, reason):
        """The reason names the tool and the fix."""
        requirement = checks.tool_calls("weather", schemas={"weather": self.SCHEMA}, most=2)
        passed, complaints = verdict(run, requirement, answer)
        assert not passed
        assert reason in complaints[0]


class TestPythonImports:
    @pytest.mark.parametrize(
        "code", ["import math", "from json.decoder import JSONDecoder", "x = 1", "import json as j"]
    )
    def test_allowed_modules_pass(self, run, code):
        """Submodules of an allowed one pass, too."""
        assert (True, ()) == verdict(run, checks.python_imports("math", "json"), f"```python\n{code}\n```")

    @pytest.mark.parametrize(
        ("code", "reason"),
        [
            ("import os", "it imports os: import math, json only"),
            ("import mathematics", "it imports mathematics"),
            ("def f():\n    from subprocess import run", "it imports subprocess"),
            ("__import__('os')", "it imports __import__"),
            ("exec('import os')", "it imports exec()"),
            ("from . import x", "it imports .:"),
            ("import importlib", "it imports importlib"),
            ("def", "the code does not parse"),
        ],
    )
    def test_others_are_named(self, run, code, reason):
        """The reason names them, and what is allowed."""
        passed, complaints = verdict(run, checks.python_imports("math", "json"), code)
        assert not passed
        assert reason in complaints[0]


def test_groundedness_is_judged_against_the_context(run):
    """The judge sees the documents of `validation_ctx`, and its reason is the complaint."""
    critic = ScriptedBackend(["No\nThe length is not in the document."])
    documents = Context([Message("user", "The Rhine is a river.")])
    passed, complaints = verdict(run, checks.grounded(backend=critic), "It is 1233 km long.", validation_ctx=documents)
    assert not passed
    assert complaints[0].endswith("contradicted: The length is not in the document")
    assert "The Rhine is a river." in critic.requests[0].messages[-1].content


@pytest.mark.parametrize(
    ("line", "heading"),
    [
        ("# A", "a"),
        ("## a ## b ## \t#", "a ## b"),
        ("# ##", ""),
        ("#\t*Bold* #", "bold"),
        ("# c#", "c"),
        ("# #x", "#x"),
    ],
)
def test_a_heading_is_read_without_its_closing_marks(line, heading):
    """As many # as there are at the end do not belong to it."""
    assert [heading] == _Structure(line).headings
