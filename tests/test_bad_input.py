"""
Bad input: whatever is wrong is refused where it is passed in, by an error that can be acted on.

Every message names the argument, shows the value, and says what is allowed. The columns of the tables:
what is called, what it raises, and what the message must contain, which is the argument, the value and what is allowed.
"""

import functools
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import anyio
import attrs
import pytest

from sampling import (
    Action,
    Attempt,
    BaseSamplingStrategy,
    Budget,
    Context,
    Generation,
    Hooks,
    IterationFinished,
    LoopStarted,
    Message,
    MultiTurnStrategy,
    Options,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Request,
    Requirement,
    Usage,
    Validation,
    checks,
    report_usage,
)
from sampling.errors import BadVerdict, InsideEventLoop
from sampling.strategies import History
from sampling.telemetry import logging_hooks
from sampling.testing import After, ScriptedBackend, World, cancel_at_every_step, explore, run_virtual

NAN, INF = math.nan, math.inf
HELLO = Message("user", "hello")
POLITE = Requirement("is polite", check=bool)
STRATEGIES = (RejectionSamplingStrategy, RepairTemplateStrategy, MultiTurnStrategy, BaseSamplingStrategy)


async def answer(request: Request) -> str:
    return "hello"


async def parse_slowly(text: str) -> str:
    return text


class ParsesSlowly:
    async def __call__(self, text: str) -> str:
        return text


@attrs.frozen
class HoldsItself:
    inner: "HoldsItself"


class HasNoRepr:
    def __repr__(self) -> str:
        raise RuntimeError("not today")


class NotABackend:
    """Has a `generate`, but that can't be called."""

    generate = 5

    def __repr__(self) -> str:
        return "NotABackend()"


class NotInstantiated:
    async def generate(self, request: Request) -> Generation:
        return Generation("hello")


@attrs.frozen
class Case:
    """A call that must be refused, and its error."""

    call: Callable[[], Any]
    error: type[Exception]
    says: tuple[str, ...]

    def check(self, error: Exception) -> None:
        message = str(error)
        missing = [words for words in self.says if words not in message]
        assert not missing, f"{message!r} does not say {missing}"
        assert not isinstance(error, AssertionError)


def table(**groups: list[tuple[Any, ...]]) -> list[Any]:
    """Build pytest parameters from named groups of (call, error, *parts of the message)."""
    return [
        pytest.param(Case(call, error, says), id=f"{group}-{says[0]}-{says[1]}".replace(" ", "_"))
        for group, rows in groups.items()
        for call, error, *says_list in rows
        for says in [tuple(says_list)]
    ]


def making(factory: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
    return functools.partial(factory, *args, **kwargs)


def budgets(strategy: type[BaseSamplingStrategy]) -> list[tuple[Any, ...]]:
    """The budgets that every strategy refuses."""
    make = functools.partial(making, strategy)
    wrong_types = [
        (make(**{name: value}), TypeError, f"{name} must be", f"got {value!r} ({type(value).__name__})", "an int >= 1")
        for name in ("loop_budget", "concurrency_budget")
        for value in (True, False, 1.5, 1.0, "3", b"3", [3], NAN)
    ]
    too_small = [
        (make(**{name: value}), ValueError, f"{name} must be", f"got {value}", ">= 1")
        for name in ("loop_budget", "concurrency_budget")
        for value in (0, -1, -(10**9))
    ]
    product = "loop_budget * concurrency_budget must be"
    too_large = [
        (make(loop_budget=10**9), ValueError, product, "1,000,000,000 * 1 ", "<= 1,000,000"),
        (make(concurrency_budget=10**9), ValueError, product, "1 * 1,000,000,000 ", "<= 1,000,000"),
        (make(loop_budget=1_001, concurrency_budget=1_000), ValueError, product, "1,001 * 1,000", "<= 1,000,000"),
    ]
    return wrong_types + too_small + too_large


def settings(strategy: type[BaseSamplingStrategy]) -> list[tuple[Any, ...]]:
    """The other settings that every strategy refuses."""
    make = functools.partial(making, strategy)
    return [
        (make(requirements="is polite"), TypeError, "requirements must be", "'is polite' (str)", "a list"),
        (make(requirements=POLITE), TypeError, "requirements must be", "(Requirement)", "put a single one in brackets"),
        (make(requirements=bool), TypeError, "requirements must be", "<class 'bool'>", "a list of requirements"),
        (make(requirements=5), TypeError, "requirements must be", "5 (int)", "a list of requirements"),
        (make(requirements={"a": POLITE}), TypeError, "requirements must be", "(dict)", "a list of requirements"),
        (make(requirements={"is polite"}), TypeError, "requirements must be", "(set)", "a list of requirements"),
        (make(requirements=b"is polite"), TypeError, "requirements must be", "(bytes)", "a list of requirements"),
        (make(requirements=[5]), TypeError, "an item of requirements must be", "5 (int)", "a callable or a str"),
        (make(requirements=[None]), TypeError, "an item of requirements must be", "None", "a Requirement, a callable"),
        (make(requirements=[" "]), ValueError, "an item of requirements must", "' '", "not be empty"),
        (make(hooks=[len]), TypeError, "hooks must be", "[<built-in function len>] (list)", "Hooks"),
        (make(hooks=len), TypeError, "hooks must be", "<built-in function len>", "Hooks"),
        (make(hooks=Hooks), TypeError, "hooks must be", "(type)", "Hooks"),
        (make(deterministic="yes"), TypeError, "deterministic must be", "'yes' (str)", "True or False"),
        (make(deterministic=1), TypeError, "deterministic must be", "1 (int)", "True or False"),
        (make(check_timeout_s=0), ValueError, "check_timeout_s must be", "got 0", "> 0"),
        (make(check_timeout_s=-1), ValueError, "check_timeout_s must be", "got -1", "> 0"),
        (make(check_timeout_s=NAN), ValueError, "check_timeout_s must be", "got nan", "a finite number > 0"),
        (make(check_timeout_s="1"), TypeError, "check_timeout_s must be", "'1' (str)", "a number > 0"),
        (make(max_context_chars=0), ValueError, "max_context_chars must be", "got 0", ">= 1"),
        (make(max_context_chars=1e6), TypeError, "max_context_chars must be", "1000000.0 (float)", "an int >= 1"),
        (make(depth=3), TypeError, "unexpected keyword argument", "'depth'"),
        (make(3), TypeError, "__init__() takes 1 positional argument", "2 were given"),
    ]


def subclass(base: type[BaseSamplingStrategy] = BaseSamplingStrategy, **attributes: Any) -> Callable[[], Any]:
    """Create an instance of a strategy class with these class attributes."""

    def make() -> BaseSamplingStrategy:
        mine = type("Mine", (base,), attributes)
        return mine()

    return make


CLASS_ATTRIBUTES: list[tuple[Any, ...]] = [
    (subclass(loop_budget=0), ValueError, "loop_budget must be", "got 0", ">= 1"),
    (subclass(loop_budget="3"), TypeError, "loop_budget must be", "'3' (str)", "an int >= 1"),
    (subclass(concurrency_budget=None), TypeError, "concurrency_budget must be", "None (NoneType)", "an int >= 1"),
    (subclass(requirements="is polite"), TypeError, "requirements must be", "'is polite' (str)", "a list"),
    (subclass(deterministic="no"), TypeError, "deterministic must be", "'no' (str)", "True or False"),
    (subclass(check_timeout_s=0), ValueError, "check_timeout_s must be", "got 0", "> 0"),
    (subclass(max_context_chars=None), TypeError, "max_context_chars must be", "None", "an int >= 1"),
    (subclass(sample=answer), TypeError, "overrides sample()", "Mine", "Override repair, done, select"),
    (subclass(sample_sync=answer), TypeError, "overrides sample_sync()", "Mine", "Override repair, done, select"),
    (subclass(MultiTurnStrategy, template="again"), ValueError, "template must contain", "'again'", "{reasons}"),
]

TEMPLATES: list[tuple[Any, ...]] = [
    (
        making(RepairTemplateStrategy, template="{action}"),
        ValueError,
        "template must contain",
        "'{action}'",
        "{reasons}",
    ),
    (
        making(RepairTemplateStrategy, template="{reasons}"),
        ValueError,
        "template must contain",
        "'{reasons}'",
        "{action}",
    ),
    (making(RepairTemplateStrategy, template=5), TypeError, "template must be", "5 (int)", "a str"),
    (making(RepairTemplateStrategy, template=" "), ValueError, "template must", "' '", "not be empty"),
    (making(MultiTurnStrategy, template="again"), ValueError, "template must contain", "'again'", "{reasons}"),
    (making(MultiTurnStrategy, template=b"{reasons}"), TypeError, "template must be", "b'{reasons}' (bytes)", "a str"),
]

BUDGETS: list[tuple[Any, ...]] = [
    *(
        row
        for name in ("attempts", "requests", "tokens")
        for row in (
            (making(Budget, **{name: -1}), ValueError, f"{name} must be", "got -1", ">= 0"),
            (making(Budget, **{name: 1.5}), TypeError, f"{name} must be", "1.5 (float)", "an int >= 0"),
            (making(Budget, **{name: True}), TypeError, f"{name} must be", "True (bool)", "an int >= 0"),
            (making(Budget, **{name: "9"}), TypeError, f"{name} must be", "'9' (str)", "an int >= 0"),
        )
    ),
    (making(Budget, cost=-0.01), ValueError, "cost must be", "got -0.01", ">= 0"),
    (making(Budget, cost=NAN), ValueError, "cost must be", "got nan", "a finite number >= 0"),
    (making(Budget, cost=INF), ValueError, "cost must be", "got inf", "a finite number >= 0"),
    (making(Budget, cost="1 $"), TypeError, "cost must be", "'1 $' (str)", "a number >= 0"),
    (making(Budget, deadline_s=0), ValueError, "deadline_s must be", "got 0", "> 0"),
    (making(Budget, deadline_s=-1), ValueError, "deadline_s must be", "got -1", "> 0"),
    (making(Budget, deadline_s=INF), ValueError, "deadline_s must be", "got inf", "a finite number > 0"),
    (making(Budget, deadline_s=True), TypeError, "deadline_s must be", "True (bool)", "a number > 0"),
    (making(Budget, 10), TypeError, "__init__() takes 1 positional argument", "2 were given"),
]

MESSAGES: list[tuple[Any, ...]] = [
    (
        making(Message, "nobody", "hi"),
        ValueError,
        "role must be",
        "'nobody'",
        "assistant, developer, system, tool, user",
    ),
    (making(Message, None, "hi"), ValueError, "role must be", "None", "one of assistant"),
    (making(Message, ["user"], "hi"), ValueError, "role must be", "['user']", "one of assistant"),
    (making(Message, "user", 5), TypeError, "content must be", "5 (int)", "a str"),
    (making(Message, "user", None), TypeError, "content must be", "None (NoneType)", "a str"),
    (making(Message, "user", b"hi"), TypeError, "content must be", "b'hi' (bytes)", "a str"),
    (making(Context, HELLO), TypeError, "messages must be", "Message(role='user'", "an iterable of Message"),
    (making(Context, "hello"), TypeError, "messages must be", "'hello' (str)", "an iterable of Message"),
    (making(Context, None), TypeError, "messages must be", "None (NoneType)", "an iterable of Message"),
    (making(Context, ["hello"]), TypeError, "an item of messages must be", "'hello' (str)", "a Message(role, content)"),
    (making(Context, [{"role": "user"}]), TypeError, "an item of messages must be", "(dict)", "a Message("),
    (making(Context().add, "hello"), TypeError, "an item of messages must be", "'hello' (str)", "a Message("),
    (making(Context().add, [HELLO]), TypeError, "an item of messages must be", "(list)", "a Message("),
]

OPTIONS: list[tuple[Any, ...]] = [
    (making(Options, model=5), TypeError, "model must be", "5 (int)", "a str"),
    (making(Options, model=" "), ValueError, "model must", "' '", "not be empty"),
    (making(Options, temperature=-0.1), ValueError, "temperature must be", "got -0.1", ">= 0"),
    (making(Options, temperature=NAN), ValueError, "temperature must be", "got nan", "a finite number >= 0"),
    (making(Options, temperature="hot"), TypeError, "temperature must be", "'hot' (str)", "a number >= 0"),
    (making(Options, temperature=True), TypeError, "temperature must be", "True (bool)", "a number >= 0"),
    (making(Options, max_tokens=0), ValueError, "max_tokens must be", "got 0", ">= 1"),
    (making(Options, max_tokens=10.0), TypeError, "max_tokens must be", "10.0 (float)", "an int >= 1"),
    (making(Options, seed="7"), TypeError, "seed must be", "'7' (str)", "an int"),
    (making(Options, seed=True), TypeError, "seed must be", "True (bool)", "an int"),
    (making(Options, stop="\n"), TypeError, "stop must be", "'\\n' (str)", "a sequence of str"),
    (making(Options, stop=5), TypeError, "stop must be", "5 (int)", "a sequence of str"),
    (making(Options, stop=["a", 5]), TypeError, "an item of stop must be", "5 (int)", "a str"),
    (making(Options, extra=[("top_p", 1)]), TypeError, "extra must be", "[('top_p', 1)] (list)", "a mapping"),
    (making(Options, extra={5: 1}), TypeError, "a name in extra must be", "5 (int)", "a str"),
]

ACTIONS: list[tuple[Any, ...]] = [
    (making(Action, 5), TypeError, "text must be", "5 (int)", "a str"),
    (making(Action, None), TypeError, "text must be", "None (NoneType)", "a str"),
    (
        making(Action, "hi", "json"),
        TypeError,
        "parser must be",
        "'json' (str)",
        "a function of the answer's text",
    ),
    (making(Action, "hi", parse_slowly), TypeError, "parser must be", "parse_slowly", "a plain function"),
    (making(Action, "hi", ParsesSlowly()), TypeError, "parser must be", "ParsesSlowly", "a plain function"),
    (
        making(Action, "hi", functools.partial(parse_slowly)),
        TypeError,
        "parser must be",
        "functools.partial",
        "a plain function",
    ),
    (
        making(Action, "hi", HoldsItself),
        TypeError,
        "parser must be",
        "HoldsItself",
        "a type that can be read from JSON",
    ),
    (making(Attempt, "hi", Context()), TypeError, "action must be", "'hi' (str)", "an Action"),
    (making(Attempt, Action("hi"), None), TypeError, "context must be", "None (NoneType)", "a Context"),
    (making(Attempt, Action("hi"), [HELLO]), TypeError, "context must be", "(list)", "a Context"),
    (making(Attempt, Action("hi"), Context(), {"seed": 1}), TypeError, "options must be", "(dict)", "Options or None"),
]

CHECKS: list[tuple[Any, ...]] = [
    (making(checks.matches, 5), TypeError, "pattern must be", "5 (int)", "a str"),
    (making(checks.matches, "("), ValueError, "pattern must be", "'('", "a regular expression"),
    (making(checks.matches, "a", timeout_s=0), ValueError, "timeout_s must be", "got 0", "> 0"),
    (making(checks.matches, "a", " "), ValueError, "description must", "' '", "not be empty"),
    (making(checks.one_of), ValueError, "choices must", "()", "not be empty"),
    (making(checks.one_of, ["yes", "no"]), TypeError, "an item of choices must be", "['yes', 'no'] (list)", "a str"),
    (making(checks.one_of, "yes", ""), ValueError, "an item of choices must", "''", "not be empty"),
    (making(checks.one_of, "yes", ignore_case=1), TypeError, "ignore_case must be", "1 (int)", "True or False"),
    (making(checks.length), ValueError, "length() needs", "got none", "at least one bound, such as max_words=50"),
    (making(checks.length, max_words=0), ValueError, "max_words must be", "got 0", ">= 1"),
    (making(checks.length, min_chars=-1), ValueError, "min_chars must be", "got -1", ">= 0"),
    (making(checks.length, max_lines="3"), TypeError, "max_lines must be", "'3' (str)", "an int >= 1"),
    (making(checks.length, min_words=3, max_words=2), ValueError, "min_words must be", "3 and 2", "<= max_words"),
    (making(checks.number, at_least="0"), TypeError, "at_least must be", "'0' (str)", "a number"),
    (making(checks.number, at_most=NAN), ValueError, "at_most must be", "got nan", "a finite number"),
    (making(checks.number, at_least=2, at_most=1), ValueError, "at_least must be", "2 and 1", "<= at_most"),
    (making(checks.number, whole="yes"), TypeError, "whole must be", "'yes' (str)", "True or False"),
    (making(checks.json, fenced=1), TypeError, "fenced must be", "1 (int)", "True or False"),
    (making(checks.json_schema, "{}"), TypeError, "schema must be", "'{}' (str)", "a JSON schema (a dict)"),
    (making(checks.json_schema, {"type": 5}), ValueError, "schema must be", "at /type", "a valid JSON schema"),
    (
        making(checks.json_schema, {"$ref": "a.json"}),
        ValueError,
        "a $ref in schema must",
        "'a.json'",
        "point into the schema",
    ),
    (making(checks.model, int), TypeError, "shape must be", "<class 'int'>", "a pydantic model, an attrs class"),
    (making(checks.model, {}), TypeError, "shape must be", "{} (dict)", "a pydantic model, an attrs class"),
    (making(checks.similar_to, ""), ValueError, "reference must", "''", "not be empty"),
    (making(checks.similar_to, "a", at_least=INF), ValueError, "at_least must be", "got inf", "a finite number"),
    (making(checks.similar_to, "a", similarity=1), TypeError, "similarity must be", "1", "a function of two texts"),
    (making(checks.python_runs, tests=5), TypeError, "tests must be", "5 (int)", "a str"),
    (making(checks.python_runs, tests="def f(:"), ValueError, "tests must be", "'def f(:'", "Python"),
    (making(checks.python_runs, expected_output=42), TypeError, "expected_output must be", "42 (int)", "a str"),
    (making(checks.python_runs, timeout_s=-1), ValueError, "timeout_s must be", "got -1", "> 0"),
    (making(checks.python_runs, memory_mb=1), ValueError, "memory_mb must be", "got 1", ">= 64"),
    (making(checks.python_runs, memory_mb=1.5), TypeError, "memory_mb must be", "1.5 (float)", "an int >= 64"),
    (making(checks.python_runs, python=""), ValueError, "python must", "''", "not be empty"),
    (making(checks.judge, ""), ValueError, "description must", "''", "not be empty"),
    (making(checks.judge, POLITE), TypeError, "description must be", "(Requirement)", "a str"),
    (making(checks.judge, "a", backend=5), TypeError, "backend must be", "5 (int)", "a Backend with"),
    (
        making(checks.judge, "a", backend=NotInstantiated),
        TypeError,
        "backend must be",
        "NotInstantiated",
        "Create an instance",
    ),
    (making(checks.judge, "a", at_least=11), ValueError, "at_least must be", "11 and 10", "<= out_of"),
    (making(checks.judge, "a", at_least=-1), ValueError, "at_least must be", "got -1", ">= 0"),
    (making(checks.judge, "a", at_least=1, out_of=0), ValueError, "out_of must be", "got 0", "> 0"),
    (making(checks.judge, "a", options={"seed": 1}), TypeError, "options must be", "(dict)", "Options or None"),
    (making(checks.judge, "a", timeout_s=0), ValueError, "timeout_s must be", "got 0", "> 0"),
    (making(checks.all_of), ValueError, "all_of() must", "got none", "at least one requirement"),
    (making(checks.any_of, [POLITE]), TypeError, "the requirements of any_of() must be", "(list)", "a Requirement"),
    (making(checks.not_, 5), TypeError, "the argument of not_() must be", "5 (int)", "a Requirement, a callable"),
    (making(checks.all_of, POLITE, description=""), ValueError, "description must", "''", "not be empty"),
    (making(checks.weighted, []), ValueError, "weighted() must", "got none", "at least one requirement"),
    (making(checks.weighted, POLITE), TypeError, "weights must be", "(Requirement)", "a list of (requirement, weight)"),
    (making(checks.weighted, [POLITE]), TypeError, "an item of weights must be", "(Requirement)", "a tuple of"),
    (making(checks.weighted, [(POLITE, 0)]), ValueError, "a weight must be", "got 0", "> 0"),
    (making(checks.weighted, [(POLITE, "1")]), TypeError, "a weight must be", "'1' (str)", "a number > 0"),
    (making(checks.weighted, [(POLITE, 1)], at_least=2), ValueError, "at_least must be", "got 2", "<= 1"),
    (making(checks.weighted, [(POLITE, 1)], at_least=-1), ValueError, "at_least must be", "got -1", ">= 0"),
]

HISTORIES: list[tuple[Any, ...]] = [
    *(
        row
        for strategy in (MultiTurnStrategy, RepairTemplateStrategy)
        for row in (
            (making(strategy, history=0), ValueError, "keep must be", "got 0", ">= 1"),
            (making(strategy, history="last"), ValueError, "keep must be", "'last'", "'all', 'best' or the number"),
            (making(strategy, history=True), TypeError, "history must be", "True (bool)", "a History, 'all', 'best'"),
            (making(strategy, history=[1]), TypeError, "history must be", "[1] (list)", "a History, 'all', 'best'"),
            (subclass(strategy, history=1.5), TypeError, "history must be", "1.5 (float)", "a History, 'all', 'best'"),
        )
    ),
    (making(History, None), TypeError, "keep must be", "None (NoneType)", "an int >= 1"),
    (making(History, max_tokens=0), ValueError, "max_tokens must be", "got 0", ">= 1"),
    (making(History, max_tokens="1k"), TypeError, "max_tokens must be", "'1k' (str)", "an int >= 1"),
    (making(History, count_tokens=4), TypeError, "count_tokens must be", "4 (int)", "a function that counts"),
]

REQUESTS: list[tuple[Any, ...]] = [
    (making(Request, "hello"), TypeError, "messages must be", "'hello' (str)", "Messages"),
    (making(Request, HELLO), TypeError, "messages must be", "(Message)", "Messages"),
    (making(Request, None), TypeError, "messages must be", "None (NoneType)", "Messages"),
    (making(Request, ["hello"]), TypeError, "an item of messages must be", "'hello' (str)", "a Message("),
    (making(Request, ("hello",)), TypeError, "an item of messages must be", "'hello' (str)", "a Message("),
    (making(Request, (HELLO,), {"seed": 1}), TypeError, "options must be", "{'seed': 1} (dict)", "Options"),
    (making(Request, (HELLO,), None), TypeError, "options must be", "None (NoneType)", "Options"),
    (making(Request, (HELLO,), sampling_id=5), TypeError, "sampling_id must be", "5 (int)", "a str"),
    (making(Request, (HELLO,), iteration_id=None), TypeError, "iteration_id must be", "None", "a str"),
    (making(Request, (HELLO,), iteration=0), ValueError, "iteration must be", "got 0", ">= 1"),
    (making(Request, (HELLO,), iteration="1"), TypeError, "iteration must be", "'1' (str)", "an int >= 1"),
    (making(Request, (HELLO,), subsample=-1), ValueError, "subsample must be", "got -1", ">= 0"),
    (making(Request, (HELLO,), attempt=0.0), TypeError, "attempt must be", "0.0 (float)", "an int >= 0"),
    (making(Request, (HELLO,), attempt=True), TypeError, "attempt must be", "True (bool)", "an int >= 0"),
    (making(Generation, None), TypeError, "text must be", "None (NoneType)", "a str"),
    (making(Generation, b"hi"), TypeError, "text must be", "b'hi' (bytes)", "a str"),
    (making(Generation, "hi", 12), TypeError, "usage must be", "12 (int)", "a Usage"),
    (making(Generation, "hi", {"input_tokens": 1}), TypeError, "usage must be", "(dict)", "a Usage"),
    (making(Generation, "hi", finish_reason=None), TypeError, "finish_reason must be", "None", 'a str, such as "stop"'),
    (making(Generation, "hi", model=5), TypeError, "model must be", "5 (int)", "a str or None"),
    (making(Generation, "hi", reasoning=["hm"]), TypeError, "reasoning must be", "['hm'] (list)", "a str or None"),
    (making(Usage, -1), ValueError, "input_tokens must be", "got -1", ">= 0"),
    (making(Usage, 1.5), TypeError, "input_tokens must be", "1.5 (float)", "an int >= 0"),
    (making(Usage, None), TypeError, "input_tokens must be", "None (NoneType)", "an int >= 0"),
    (making(Usage, 0, -7), ValueError, "output_tokens must be", "got -7", ">= 0"),
    (making(Usage, 0, True), TypeError, "output_tokens must be", "True (bool)", "an int >= 0"),
    (making(Usage, cost=-1), ValueError, "cost must be", "got -1", ">= 0"),
    (making(Usage, cost=NAN), ValueError, "cost must be", "got nan", "a finite number >= 0"),
    (making(Usage, cost="1"), TypeError, "cost must be", "'1' (str)", "a number >= 0"),
    (lambda: Usage() + 5, TypeError, "unsupported operand", "'Usage' and 'int'"),
]

REQUIREMENTS: list[tuple[Any, ...]] = [
    (making(Requirement, "a", bool, judged="yes"), TypeError, "judged must be", "'yes' (str)", "True or False"),
    (making(Requirement, ""), ValueError, "description must", "''", "not be empty"),
    (making(Requirement, " \n"), ValueError, "description must", "' \\n'", "not be empty"),
    (making(Requirement, None), TypeError, "description must be", "None (NoneType)", "a str"),
    (making(Requirement, bool), TypeError, "description must be", "<class 'bool'>", "a str"),
    (making(Requirement, "x", "y"), TypeError, "check must be", "'y' (str)", "a function of the text, or None"),
    (making(Requirement, "x", True), TypeError, "check must be", "True (bool)", "a function of the text"),
    (
        making(Requirement, "x", partial=5),
        TypeError,
        "partial must be",
        "5 (int)",
        "a function of the text so far",
    ),
    (making(Requirement, "x", blocking="no"), TypeError, "blocking must be", "'no' (str)", "True or False"),
    (making(Requirement, "x", blocking=None), TypeError, "blocking must be", "None (NoneType)", "True or False"),
    (making(Requirement, "x", timeout_s=0), ValueError, "timeout_s must be", "got 0", "> 0"),
    (making(Requirement, "x", timeout_s=-1), ValueError, "timeout_s must be", "got -1", "> 0"),
    (making(Requirement, "x", timeout_s=NAN), ValueError, "timeout_s must be", "got nan", "a finite number > 0"),
    (making(Requirement, "x", timeout_s=INF), ValueError, "timeout_s must be", "got inf", "a finite number > 0"),
    (making(Requirement, "x", timeout_s="1"), TypeError, "timeout_s must be", "'1' (str)", "a number > 0"),
    (making(Requirement, "x", timeout_s=True), TypeError, "timeout_s must be", "True (bool)", "a number > 0"),
    (making(Validation, "yes"), BadVerdict, "passed must be", "'yes'", "True or False"),
    (making(Validation, 1), BadVerdict, "passed must be", "got 1", "True or False"),
    (making(Validation, None), BadVerdict, "passed must be", "None", "True or False"),
    (making(Validation, True, 5), BadVerdict, "reason must be", "got 5", "a str or None"),
    (making(Validation, True, None, "good"), BadVerdict, "score must be", "'good'", "a finite number or None"),
    (making(Validation, True, requirement="x"), TypeError, "requirement must be", "'x' (str)", "a Requirement or None"),
    (making(Validation, True, error="x"), TypeError, "error must be", "'x' (str)", "an Exception or None"),
    (
        making(Requirement, HasNoRepr()),
        TypeError,
        "description must be",
        "<HasNoRepr object that has no repr>",
        "a str",
    ),
    (making(Requirement, ["x"] * 1_000), TypeError, "description must be", "['x', 'x',", "… (list)", "a str"),
]

HOOKS: list[tuple[Any, ...]] = [
    (making(Hooks, timeout_s=0), ValueError, "timeout_s must be", "got 0", "> 0"),
    (making(Hooks, timeout_s=None), TypeError, "timeout_s must be", "None (NoneType)", "a number > 0"),
    (making(Hooks, timeout_s=INF), ValueError, "timeout_s must be", "got inf", "a finite number > 0"),
    (making(Hooks().on), TypeError, "on() needs", "at least one event type", "hooks.on(IterationFinished)"),
    (
        making(Hooks().on, "LoopStarted"),
        TypeError,
        "event must be",
        "'LoopStarted' (str)",
        "an event type: LoopStarted",
    ),
    (making(Hooks().on, len), TypeError, "event must be", "<built-in function len>", "an event type"),
    (making(Hooks().on, int), TypeError, "event must be", "<class 'int'>", "an event type"),
    (making(Hooks().on, LoopStarted, critical=1), TypeError, "critical must be", "1 (int)", "True or False"),
    (making(Hooks().on, LoopStarted, timeout_s=-1), ValueError, "timeout_s must be", "got -1", "> 0"),
    (making(Hooks().on(LoopStarted), 5), TypeError, "hook must be", "5 (int)", "a callable of one event"),
    (making(Hooks().include, [print]), TypeError, "other must be", "(list)", "Hooks"),
    (making(logging_hooks, level="loud"), ValueError, "level must be", "'loud'", "one of debug, info, warning, error"),
    (making(logging_hooks, len), TypeError, "logger must be", "<built-in function len>", "a structlog logger"),
]

TESTING: list[tuple[Any, ...]] = [
    (making(After, -1, "hi"), ValueError, "delay_s must be", "got -1", ">= 0"),
    (making(After, "1", "hi"), TypeError, "delay_s must be", "'1' (str)", "a number >= 0"),
    (making(After, NAN, "hi"), ValueError, "delay_s must be", "got nan", "a finite number >= 0"),
    (making(ScriptedBackend, "hello"), TypeError, "script must be", "'hello' (str)", "an iterable of replies"),
    (making(ScriptedBackend, 5), TypeError, "script must be", "5 (int)", "an iterable of replies, or a function"),
    (making(ScriptedBackend, None), TypeError, "script must be", "None (NoneType)", "an iterable of replies"),
    (making(run_virtual, answer, loop="curio"), ValueError, "loop must be", "'curio'", "'asyncio' or 'trio'"),
    (making(run_virtual, answer, horizon_s=0), ValueError, "horizon_s must be", "0", "positive and finite"),
    (making(run_virtual, answer, step_limit=0), ValueError, "step_limit must be", "0", "at least 1"),
    (making(explore, answer, seeds=[1], replay=2), ValueError, "replay is", "2", "a share from 0 to 1"),
    (making(explore, answer, seeds=[1], loops=["curio"]), ValueError, "loop must be", "'curio'", "'asyncio' or 'trio'"),
    (making(cancel_at_every_step, answer, times=0), ValueError, "times=", "0", "at least 1"),
    (making(cancel_at_every_step, answer, times=2), ValueError, "times=", "2", "only with native=True"),
    (
        making(cancel_at_every_step, answer, native=True, loops=["trio"]),
        ValueError,
        "native=True",
        "['trio']",
        "a task of asyncio",
    ),
]


@pytest.mark.parametrize(
    "case",
    table(
        class_attributes=CLASS_ATTRIBUTES,
        templates=TEMPLATES,
        budget=BUDGETS,
        messages=MESSAGES,
        options=OPTIONS,
        actions=ACTIONS,
        checks=CHECKS,
        histories=HISTORIES,
        requests=REQUESTS,
        requirements=REQUIREMENTS,
        hooks=HOOKS,
        testing=TESTING,
        **{strategy.__name__: [*budgets(strategy), *settings(strategy)] for strategy in STRATEGIES},
    ),
)
def test_a_constructor_refuses_what_it_cannot_use(case):
    """The error is a TypeError or a ValueError, raised by the call itself."""
    with pytest.raises(case.error) as caught:
        case.call()
    case.check(caught.value)


SAMPLE: list[tuple[Any, ...]] = [
    ({"action": 5}, TypeError, "action must be", "5 (int)", "an Action or a str"),
    ({"action": None}, TypeError, "action must be", "None (NoneType)", "an Action or a str"),
    ({"action": HELLO}, TypeError, "action must be", "(Message)", "an Action or a str"),
    ({"ctx": [HELLO]}, TypeError, "ctx must be", "(list)", "a Context or None"),
    ({"ctx": "system"}, TypeError, "ctx must be", "'system' (str)", "a Context or None"),
    ({"ctx": Context}, TypeError, "ctx must be", "(type)", "a Context or None"),
    (
        {"backend": None},
        TypeError,
        "backend must be",
        "None (NoneType)",
        "a Backend with `async def generate(request)`",
    ),
    ({"backend": "gpt"}, TypeError, "backend must be", "'gpt' (str)", "or an async function of one request"),
    ({"backend": NotABackend()}, TypeError, "backend must be", "NotABackend()", "a Backend with `async def generate"),
    ({"backend": NotInstantiated}, TypeError, "backend must be", "the class NotInstantiated", "an instance"),
    ({"backend": lambda request: "hi"}, TypeError, "backend must be", "<lambda>", "async"),
    ({"reqs": "is polite"}, TypeError, "reqs must be", "'is polite' (str)", "a list of requirements"),
    ({"reqs": POLITE}, TypeError, "reqs must be", "(Requirement)", "put a single one in brackets"),
    ({"reqs": bool}, TypeError, "reqs must be", "<class 'bool'>", "a list of requirements"),
    ({"reqs": 5}, TypeError, "reqs must be", "5 (int)", "a list of requirements"),
    ({"reqs": {"is polite": bool}}, TypeError, "reqs must be", "(dict)", "a list of requirements"),
    ({"reqs": [POLITE, 5]}, TypeError, "an item of reqs must be", "5 (int)", "a Requirement, a callable or a str"),
    ({"reqs": [""]}, ValueError, "an item of reqs must", "''", "not be empty"),
    ({"options": {"seed": 1}}, TypeError, "options must be", "{'seed': 1} (dict)", "Options or None"),
    ({"options": Options}, TypeError, "options must be", "(type)", "Options or None"),
    ({"budget": 10}, TypeError, "budget must be", "10 (int)", "a Budget or None"),
    ({"budget": {"tokens": 10}}, TypeError, "budget must be", "(dict)", "a Budget or None"),
    ({"validation_ctx": [HELLO]}, TypeError, "validation_ctx must be", "(list)", "a Context or None"),
    ({"validation_ctx": "x"}, TypeError, "validation_ctx must be", "'x' (str)", "a Context or None"),
    ({"hooks": [print]}, TypeError, "hooks must be", "(list)", "Hooks or None"),
    ({"hooks": len}, TypeError, "hooks must be", "<built-in function len>", "Hooks or None"),
]

CHANGED_LATER: list[tuple[Any, ...]] = [
    ({"loop_budget": 0}, ValueError, "loop_budget must be", "got 0", ">= 1"),
    ({"concurrency_budget": "4"}, TypeError, "concurrency_budget must be", "'4' (str)", "an int >= 1"),
    ({"requirements": "is polite"}, TypeError, "requirements must be", "'is polite' (str)", "a list"),
    ({"requirements": [5]}, TypeError, "an item of requirements must be", "5 (int)", "a Requirement, a callable"),
    ({"hooks": [print]}, TypeError, "the strategy's hooks must be", "(list)", "Hooks"),
]


async def call_sample(given: dict[str, Any], strategy: BaseSamplingStrategy) -> None:
    await strategy.sample(**{"action": "hi", "ctx": None, "backend": answer, **given})


class TestSample:
    """`sample()` and `sample_sync()` check their arguments before they send a request."""

    @pytest.mark.parametrize("case", table(sample=SAMPLE))
    def test_sample_refuses_what_it_cannot_use(self, run, case):
        """On asyncio and on trio."""
        with pytest.raises(case.error) as caught:
            run(call_sample, case.call, RejectionSamplingStrategy())
        case.check(caught.value)

    @pytest.mark.parametrize("case", table(sample_sync=SAMPLE))
    def test_sample_sync_refuses_the_same(self, case):
        """`sample_sync` raises the same messages."""
        with pytest.raises(case.error) as caught:
            RejectionSamplingStrategy().sample_sync(**{"action": "hi", "ctx": None, "backend": answer, **case.call})
        case.check(caught.value)

    @pytest.mark.parametrize("case", table(changed_later=CHANGED_LATER))
    def test_a_strategy_that_was_changed_is_checked_again(self, run, case):
        """Attributes that are set after construction are checked at the next call."""
        strategy = RejectionSamplingStrategy()
        for name, value in case.call.items():
            setattr(strategy, name, value)
        with pytest.raises(case.error) as caught:
            run(call_sample, {}, strategy)
        case.check(caught.value)

    @pytest.mark.parametrize("given", [row[0] for row in SAMPLE if "backend" not in row[0]], ids="_".join)
    def test_the_backend_is_not_asked(self, run, given):
        """A refused call sends no request."""
        backend = ScriptedBackend(lambda request: "hi")
        with pytest.raises((TypeError, ValueError)):
            run(call_sample, {"backend": backend, **given}, RejectionSamplingStrategy())
        assert backend.requests == []

    @pytest.mark.parametrize(
        ("name", "value"), [("loop_budget", 0), ("concurrency_budget", 10**9), ("loop_budget", "2")]
    )
    def test_a_hook_that_sets_a_bad_budget_is_named(self, run, name, value):
        """Row 34: the ValueError names the hook and the budget, and shows the value."""
        hooks = Hooks()

        @hooks.on(LoopStarted)
        def deeper(event):
            return attrs.evolve(event, **{name: value})

        with pytest.raises(ValueError, match=name) as caught:
            run(call_sample, {"hooks": hooks}, RejectionSamplingStrategy())
        assert "deeper" in str(caught.value)
        assert f"{value:,}" in str(caught.value) if type(value) is int else repr(value) in str(caught.value)

    @pytest.mark.parametrize(
        ("reply", "shown"),
        [(None, "None (NoneType)"), (5, "5 (int)"), (b"hi", "b'hi' (bytes)"), (["hi"], "['hi'] (list)")],
    )
    def test_a_backend_that_answers_with_something_else_is_named(self, run, reply, shown):
        """A backend that returns neither a Generation nor a str raises a TypeError."""

        async def backend(request):
            return reply

        with pytest.raises(TypeError, match="the return value of the backend must be a Generation or a str") as caught:
            run(call_sample, {"backend": backend}, RejectionSamplingStrategy())
        assert shown in str(caught.value)

    @pytest.mark.parametrize(
        "verdict", [None, "yes", 1, 0.5, (True,), (1, "reason"), ("a", "b"), [True, "x"]], ids=repr
    )
    def test_a_check_that_answers_with_something_else_is_named(self, run, verdict):
        """Row 53: the error names the requirement and shows what its check returned."""
        requirement = Requirement("is polite", lambda text: verdict)
        with pytest.raises(BadVerdict, match="requirement 'is polite'") as caught:
            run(call_sample, {"reqs": [requirement]}, RejectionSamplingStrategy())
        assert repr(verdict) in str(caught.value)
        assert isinstance(caught.value, TypeError)


class TestSampleSync:
    async def test_inside_an_event_loop_it_says_what_to_write_instead(self):
        """The loop is not blocked and no request is sent, on both event loops."""
        backend = ScriptedBackend(["hi"])
        with pytest.raises(InsideEventLoop, match="would block the event loop") as caught:
            RejectionSamplingStrategy().sample_sync("hi", None, backend)
        assert any("await strategy.sample" in note for note in caught.value.__notes__)
        assert isinstance(caught.value, RuntimeError)
        assert backend.requests == []

    async def test_in_a_thread_of_its_own_it_works(self):
        """`sample_sync` works in a thread without an event loop."""
        call = functools.partial(RejectionSamplingStrategy().sample_sync, "hi", None, ScriptedBackend(["yes"]))
        assert (await anyio.to_thread.run_sync(call)).text == "yes"


def test_good_input_is_not_refused():
    """Values at the limits of the allowed range are accepted."""
    RejectionSamplingStrategy(loop_budget=1_000, concurrency_budget=1_000, requirements=(), check_timeout_s=1e-9)
    RejectionSamplingStrategy(requirements=iter([POLITE, bool, "is polite"]))
    Budget(attempts=0, requests=0, tokens=0, cost=0, deadline_s=1e-9)
    Options(temperature=0, max_tokens=1, seed=-1, stop=["\n"], extra={"top_p": 1}, schema=object())
    Request(iter([HELLO]))
    Request((), Options(), "", 1, "", 0, 0)
    Usage(10**30, 0, 0)
    Validation(True, "", -1.5, requirement=POLITE, error=ValueError())
    Hooks().on(LoopStarted, IterationFinished, timeout_s=1)(print)
    Message("tool", "")
    World(0, "trio")


def test_no_check_is_an_assert():
    """The same values are refused under `python -O`."""
    program = (
        "from sampling import *\n"
        "for make in (lambda: RejectionSamplingStrategy(loop_budget=0), lambda: Usage(-1), lambda: Message('x', 'y'),\n"
        "             lambda: Requirement(''), lambda: Budget(tokens=-1), lambda: Options(max_tokens=0)):\n"
        "    try:\n"
        "        make()\n"
        "    except ValueError as error:\n"
        "        print('refused')\n"
    )
    done = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout.split() == ["refused"] * 6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: report_usage(5), "usage must be a Usage, got 5"),
        (lambda: After(0, 5), "reply must be a text, a Generation or an exception, got 5"),
        (lambda: World(1, "curio"), "loop must be 'asyncio' or 'trio', got 'curio'"),
        (lambda: World("x", "trio"), "seed must be an int, got 'x'"),
        (lambda: explore(call_nothing, seeds=[]), "seeds and loops must not be empty"),
        (lambda: explore(call_nothing, seeds=[1], must_reach="abc"), "must_reach must be an iterable of names"),
    ],
)
def test_the_kit_for_tests_is_strict_too(make, message):
    """A test with a wrong setup must not pass."""
    with pytest.raises((TypeError, ValueError), match=message):
        make()


async def call_nothing(world):
    """An empty scenario."""


def test_a_parser_that_returns_a_coroutine_says_so():
    """Otherwise the coroutine would be the answer, and never be awaited."""

    async def parse(text):
        return text

    with pytest.raises(TypeError, match="the parser returned a coroutine"):
        RejectionSamplingStrategy().sample_sync(Action("q", lambda text: parse(text)), None, ScriptedBackend(["x"]))  # noqa: PLW0108
