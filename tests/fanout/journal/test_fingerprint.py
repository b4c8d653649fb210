"""F16: the fingerprint sees everything that decides an answer."""

import contextvars
import dataclasses
import functools
import re
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Protocol

import attrs
import pydantic
import pytest
from typing_extensions import TypedDict

from sampling import (
    Action,
    BestOfNStrategy,
    EscalationStrategy,
    Limited,
    MajorityVotingStrategy,
    MultiTurnStrategy,
    Options,
    RejectionSamplingStrategy,
    Requirement,
    ToolLoop,
    checks,
    fan_out,
    tool,
)
from sampling.errors import JournalMismatch
from sampling.fanout.journal import _description
from sampling.fanout.journal._fingerprint import differences, earlier_item_digests, fingerprint_of, item_digest
from sampling.strategies import Tier
from sampling.testing import ScriptedBackend
from tests.faults.journals import InlineJournal, answering, numbers

ONCE = RejectionSamplingStrategy()
WORDS = {"a", "b"}


def fingerprint(strategy=ONCE, requirements=(), **settings):
    reqs = [one if isinstance(one, Requirement) else Requirement("r", one) for one in requirements]
    return fingerprint_of(strategy, reqs, None, None, None, **settings)


def with_check(check):
    return fingerprint(requirements=[check])


@dataclasses.dataclass
class Limits:
    most: int


@attrs.define
class Words:
    allowed: tuple

    def check(self, text):
        return text in self.allowed

    def __call__(self, text):
        return text in self.allowed


class Slotted:
    __slots__ = ("least",)

    def __init__(self, least):
        self.least = least

    def check(self, text):
        return len(text) >= self.least


def counting(most):
    class Counting:
        limit = most

        def __call__(self, text):
            return len(text) < self.limit

    return Counting()


def with_property(first):
    class Measured:
        if first:

            @property
            def least(self):
                return 1
        else:

            @property
            def least(self):
                return 2

        def __call__(self, text):
            return len(text) > self.least

    return Measured()


class Person(pydantic.BaseModel):
    model_config = {"extra": "allow"}
    name: str = ""


class Raising:
    """An object whose every unknown attribute raises."""

    def __getattr__(self, name):
        raise RuntimeError(name)


class Unprintable(str):
    __slots__ = ()

    def __str__(self):
        raise RuntimeError("no text")


class Unknown:
    """A check whose fingerprint raises."""

    def __call__(self, text):
        return True

    def fingerprint(self):
        raise RuntimeError("unknown")


def closing_over(value):
    return lambda text: bool(value)


def keyword(least):
    def check(text, *, limit=least):
        return len(text) > limit

    return check


def tiers(depth, model="small"):
    backend = ScriptedBackend(["yes"])
    backend.model = model
    return EscalationStrategy([Tier(backend, RejectionSamplingStrategy(loop_budget=depth)), Tier(backend, ONCE)])


class Client:
    """A backend of a user, which is used by its method."""

    def __init__(self, model):
        self.model = model

    async def ask(self, request, **settings):
        return "yes"


def function_of(model):
    async def backend(_request):
        return "yes"

    backend.model = model
    return EscalationStrategy([Tier(backend, ONCE)])


def plus(number):
    return lambda value: value + number


def factory(number):
    return lambda: [number]


def model_with(annotation=int, default=..., **private):
    return pydantic.create_model("Answer", x=(annotation, default), **private)


def dataclass_with(field):
    @dataclasses.dataclass
    class Answer:
        x: list = field

    return Answer


def typed_dict(annotation):
    return TypedDict("Answer", {"x": annotation})


def written_as_text(number):
    class Inner(pydantic.BaseModel):
        x: Annotated[int, pydantic.AfterValidator(plus(number))] = 1

    kind = dataclasses.make_dataclass("Answer", [("inner", "Inner")])
    kind.__module__ = __name__
    globals()["Inner"] = Inner
    return kind


def overriding(number):
    class Base:
        def check(self, text):
            return len(text) > number

    class Mine(Base):
        def check(self, text):
            return super().check(text)

    return Mine().check


def with_attribute(number):
    def check(text):
        return len(text) > check.limit

    check.limit = number
    return check


def structural(number):
    class Shape(Protocol):
        def area(self):
            return number

    return Shape


def with_tools(number):
    @tool
    def look_up(word: str) -> str:
        """Look a word up."""
        return word * number

    return Limited(ToolLoop(answering(), [look_up]), max_in_flight=4)


def annotated(number):
    return Annotated[int, pydantic.AfterValidator(plus(number))]


def escalating(*requirements, strategy=RejectionSamplingStrategy):
    return EscalationStrategy([Tier(None, strategy(requirements=requirements))])


VALUES = {
    "what is added to a type": (lambda: annotated(1), lambda: annotated(2)),
    "what is added to a part of a type": (lambda: list[annotated(1)], lambda: list[annotated(2)]),
    "a validator of a pydantic field": (lambda: model_with(annotated(1)), lambda: model_with(annotated(2))),
    "a validator in a pydantic field": (lambda: model_with(list[annotated(1)]), lambda: model_with(list[annotated(2)])),
    "a strict pydantic field": (
        lambda: model_with(Annotated[int, pydantic.Field(strict=True)]),
        lambda: model_with(Annotated[int, pydantic.Field(strict=False)]),
    ),
    "a factory of a pydantic field": (
        lambda: model_with(list, pydantic.Field(default_factory=factory(1))),
        lambda: model_with(list, pydantic.Field(default_factory=factory(2))),
    ),
    "a private attribute of a pydantic model": (
        lambda: model_with(_seen=(int, pydantic.PrivateAttr(1))),
        lambda: model_with(_seen=(int, pydantic.PrivateAttr(2))),
    ),
    "a factory of a dataclass": (
        lambda: dataclass_with(dataclasses.field(default_factory=factory(1))),
        lambda: dataclass_with(dataclasses.field(default_factory=factory(2))),
    ),
    "a dataclass whose types are texts": (lambda: written_as_text(1), lambda: written_as_text(2)),
    "a default of an attrs class": (
        lambda: attrs.make_class("Answer", {"x": attrs.field(default=1)}, slots=True),
        lambda: attrs.make_class("Answer", {"x": attrs.field(default=2)}, slots=True),
    ),
    "a factory of an attrs class": (
        lambda: attrs.make_class("Answer", {"x": attrs.field(factory=factory(1))}),
        lambda: attrs.make_class("Answer", {"x": attrs.field(factory=factory(2))}),
    ),
    "a field of a typed dict": (lambda: typed_dict(annotated(1)), lambda: typed_dict(annotated(2))),
    "a protocol": (lambda: structural(1), lambda: structural(2)),
    "an adapter": (lambda: pydantic.TypeAdapter(annotated(1)), lambda: pydantic.TypeAdapter(annotated(2))),
    "the configuration of an adapter": (
        lambda: pydantic.TypeAdapter(str, config={"str_to_lower": True}),
        lambda: pydantic.TypeAdapter(str, config={"str_to_lower": False}),
    ),
    "the type of a key": (lambda: {1: "a"}, lambda: {"1": "a"}),
    "a factory of a dict": (lambda: defaultdict(factory(1)), lambda: defaultdict(factory(2))),
    "a bool that is a number": (lambda: [True], lambda: [1]),
}
"""Pairs of values that a check may close over."""

CHANGES = {
    **{
        name: (lambda one=one: with_check(closing_over(one())), lambda two=two: with_check(closing_over(two())))
        for name, (one, two) in VALUES.items()
    },
    "a method that is overridden": (lambda: with_check(overriding(1)), lambda: with_check(overriding(2))),
    "an attribute of a function": (lambda: with_check(with_attribute(1)), lambda: with_check(with_attribute(2))),
    "a requirement of a tier": (
        lambda: fingerprint(escalating(Requirement("r", closing_over(1)))),
        lambda: fingerprint(escalating(Requirement("r", closing_over(2)))),
    ),
    "the score of a tier": (
        lambda: fingerprint(escalating(strategy=functools.partial(BestOfNStrategy, score=closing_over(1)))),
        lambda: fingerprint(escalating(strategy=functools.partial(BestOfNStrategy, score=closing_over(2)))),
    ),
    "the tools of the backend": (
        lambda: fingerprint(backend=with_tools(1)),
        lambda: fingerprint(backend=with_tools(2)),
    ),
    "a tier's strategy": (lambda: fingerprint(tiers(1)), lambda: fingerprint(tiers(2))),
    "the model of a tier that is a function": (
        lambda: fingerprint(function_of("small")),
        lambda: fingerprint(function_of("large")),
    ),
    "the model of a backend with bound arguments": (
        lambda: fingerprint(backend=functools.partial(Client.ask, None, model="small")),
        lambda: fingerprint(backend=functools.partial(Client.ask, None, model="large")),
    ),
    "the model of a backend that is a method": (
        lambda: fingerprint(backend=Limited(Client("small").ask, max_in_flight=4)),
        lambda: fingerprint(backend=Limited(Client("large").ask, max_in_flight=4)),
    ),
    "the model of a method with bound arguments": (
        lambda: fingerprint(backend=functools.partial(Client("small").ask, seed=1)),
        lambda: fingerprint(backend=functools.partial(Client("large").ask, seed=1)),
    ),
    "a tier's model": (lambda: fingerprint(tiers(1)), lambda: fingerprint(tiers(1, "large"))),
    "a bound object": (lambda: with_check(Words(("a",)).check), lambda: with_check(Words(("b",)).check)),
    "a bound object with slots": (lambda: with_check(Slotted(1).check), lambda: with_check(Slotted(2).check)),
    "a callable object": (lambda: with_check(Words(("a",))), lambda: with_check(Words(("b",)))),
    "a set in a closure": (lambda: with_check(closing_over({1, 2})), lambda: with_check(closing_over({1, 3}))),
    "a pattern in a closure": (
        lambda: with_check(closing_over(re.compile("a"))),
        lambda: with_check(closing_over(re.compile("a", re.IGNORECASE))),
    ),
    "a dataclass in a closure": (
        lambda: with_check(closing_over(Limits(1))),
        lambda: with_check(closing_over(Limits(2))),
    ),
    "bytes in a closure": (lambda: with_check(closing_over(b"a")), lambda: with_check(closing_over(b"b"))),
    "a keyword-only default": (lambda: with_check(keyword(1)), lambda: with_check(keyword(2))),
    "a partial of an object": (
        lambda: with_check(functools.partial(Words(("a",)))),
        lambda: with_check(functools.partial(Words(("b",)))),
    ),
    "a nested setting": (
        lambda: fingerprint(MajorityVotingStrategy(concurrency_budget=3, key=closing_over({"x"}))),
        lambda: fingerprint(MajorityVotingStrategy(concurrency_budget=3, key=closing_over({"y"}))),
    ),
    "a schema": (
        lambda: fingerprint(requirements=[checks.json_schema({"type": "object", "required": ["a"]})]),
        lambda: fingerprint(requirements=[checks.json_schema({"type": "object", "required": ["b"]})]),
    ),
    "a cached function": (
        lambda: with_check(functools.lru_cache(closing_over(1))),
        lambda: with_check(functools.lru_cache(closing_over(2))),
    ),
    "a constant of a class": (lambda: with_check(counting(3)), lambda: with_check(counting(4))),
    "a property": (lambda: with_check(with_property(first=True)), lambda: with_check(with_property(first=False))),
    "a pydantic object in a closure": (
        lambda: with_check(closing_over(Person(name="a"))),
        lambda: with_check(closing_over(Person(name="b"))),
    ),
    "what a pydantic object has beyond its fields": (
        lambda: with_check(closing_over(Person(age=1))),
        lambda: with_check(closing_over(Person(age=2))),
    ),
    "a number of many digits": (
        lambda: with_check(closing_over(10**5000)),
        lambda: with_check(closing_over(10**5000 + 1)),
    ),
    "keys with the same text": (
        lambda: with_check(closing_over({1: "a", "1": "b"})),
        lambda: with_check(closing_over({1: "c", "1": "b"})),
    ),
    "the order of the properties of a schema": (
        lambda: fingerprint(requirements=[checks.json_schema({"properties": {"why": {}, "answer": {}}})]),
        lambda: fingerprint(requirements=[checks.json_schema({"properties": {"answer": {}, "why": {}}})]),
    ),
    "a regex": (
        lambda: fingerprint(requirements=[checks.matches("a+")]),
        lambda: fingerprint(requirements=[checks.matches("b+")]),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change):
    """F16: two calls that may answer differently have different fingerprints, and equal ones the same."""
    before, after = CHANGES[change]
    assert [] == differences(before(), before())
    assert differences(before(), after())
    assert [] == before()["unseen"] == after()["unseen"]


def test_an_array_is_seen_and_one_of_objects_is_asked_about():
    """F16: NumPy's arrays are compared by type, shape and bytes. Those of objects have addresses instead of values."""
    numpy = pytest.importorskip("numpy")
    before, after = (with_check(closing_over(numpy.arange(5) + offset)) for offset in (0, 1))
    assert [] == differences(before, with_check(closing_over(numpy.arange(5))))
    assert differences(before, after)
    assert differences(before, with_check(closing_over(numpy.arange(5.0))))
    assert [] == before["unseen"]
    assert with_check(closing_over(numpy.array([object()])))["unseen"]


def test_a_constant_of_the_module_is_seen(monkeypatch):
    """F16: what a check reads of its module is a part of it."""

    def check(text):
        return text in WORDS

    before = with_check(check)
    monkeypatch.setitem(check.__globals__, "WORDS", {"a", "c"})
    assert differences(before, with_check(check))


def test_a_number_of_the_module_is_seen(monkeypatch):
    """F16: a constant need not be in capitals. A cache, whose content changes, is none."""

    def check(text):
        seen_before.add(text)  # noqa: F821 - set below
        return len(text) > least  # noqa: F821

    monkeypatch.setitem(check.__globals__, "least", 3)
    monkeypatch.setitem(check.__globals__, "seen_before", {"a"})
    before = with_check(check)
    monkeypatch.setitem(check.__globals__, "seen_before", {"b"})
    assert [] == differences(before, with_check(check))
    monkeypatch.setitem(check.__globals__, "least", 4)
    assert differences(before, with_check(check))


@pytest.mark.parametrize(
    "value",
    [Raising(), Unprintable("x"), {Unprintable("key"): 1}, Unknown()],
    ids=["attributes", "text", "key", "fingerprint"],
)
def test_what_raises_is_named_and_asked_about(run, tmp_path, value):
    """F16: an object that raises when it is looked at can't be compared, and ends neither a run nor an item."""
    for check in [closing_over(value), *([value] if callable(value) else [])]:
        assert ["requirements[0].check"] == [place[:21] for place in with_check(check)["unseen"]]
    items = ["0", Action("1", closing_over(value))]
    result = run(fan_out, ONCE, items, None, answering(), journal=InlineJournal(tmp_path / "run.db"))
    assert 2 == result.counts()["succeeded"]


class Whole(int):
    """A number of a type of its own."""


class Word:
    """An object with code."""

    def __init__(self, text):
        self.text = text
        self.others = [[]] * 20

    def is_in(self, text):
        return self.text in text


LARGE = {
    "a table": lambda: {f"word {number}": (number, [number]) for number in range(60_000)},
    "a table of objects": lambda: [Word(number) for number in range(5_000)],
    "a large number": lambda: 10**400,
    "a larger number": lambda: 10**5_000,
    "a large number of another type": lambda: Whole(10**400),
}


@pytest.mark.parametrize("value", LARGE.values(), ids=LARGE)
def test_a_run_with_a_large_setting_can_be_resumed(run, tmp_path, value):
    """F11: a file that can't be read back is refused as damaged, even by the run that begins it."""
    for _ in range(2):
        check = Requirement("r", closing_over([value(), [*range(3)]]))
        result = run(fan_out, ONCE, ["0"], None, answering(), [check], journal=InlineJournal(tmp_path / "run.db"))
        assert 1 == result.counts()["succeeded"]
    assert (tmp_path / "run.db").stat().st_size < 100_000
    before, after = (with_check(closing_over([value(), number])) for number in (1, 2))
    assert 1 == len(differences(before, after))


@attrs.define
class Corpus:
    text: str

    def __call__(self, text):
        return text in self.text


def test_a_run_whose_check_has_a_long_text_can_be_resumed(run, tmp_path):
    """F11: brackets count in texts, too, when a file is read back."""
    corpus = '{"words": ["yes"]}' * 60_000
    for _ in range(2):
        check, journal = Requirement("r", Corpus(corpus)), InlineJournal(tmp_path / "run.db")
        assert 1 == run(fan_out, ONCE, ["0"], None, answering(), [check], journal=journal).counts()["succeeded"]
    assert (tmp_path / "run.db").stat().st_size < 100_000
    assert 1 == len(differences(with_check(Corpus(corpus)), with_check(Corpus(f"{corpus}."))))


def test_a_member_of_a_table_is_compared():
    """F16: a table is compared by its digest, if it is long."""
    before, after = ({f"word {number}": number for number in range(9_000)} for _ in range(2))
    assert [] == differences(with_check(closing_over(before)), with_check(closing_over(after)))
    after["word 8000"] = 7
    assert differences(with_check(closing_over(before)), with_check(closing_over(after)))


def test_the_code_of_objects_in_a_table_is_compared(monkeypatch):
    """F16: within one version of Python, as that of any other object."""
    words = [Word(number) for number in range(1_000)]
    before = with_check(closing_over(words))

    def is_in(self, text):
        return text in self.text

    is_in.__qualname__ = Word.is_in.__qualname__
    monkeypatch.setattr(Word, "is_in", is_in)
    (difference,) = differences(before, with_check(closing_over(words)))
    assert "code of Python" in difference


class Place:
    """A place that knows its neighbours."""

    def __init__(self):
        self.neighbours = []


def test_objects_that_refer_to_each_other_have_an_end(monkeypatch):
    """F16: a network has any number of ways through it. It is named once, whatever can't be seen in it."""
    places = [Place() for _ in range(5)]
    for place in places:
        place.neighbours += places
    assert [] == with_check(closing_over(places))["unseen"]
    monkeypatch.setattr(_description, "_MAX_PARTS", 100)
    assert ["requirements[0].check.with (builtins.list)"] == with_check(closing_over(places))["unseen"]
    others = [Unknown() for _ in range(21)]
    assert ["requirements[0].check.with (builtins.list)"] == with_check(closing_over(others))["unseen"]
    assert 20 == len(with_check(closing_over(others[1:]))["unseen"])


def test_a_key_in_a_text_of_another_type_is_not_shown():
    """I17: it is stored as a digest, like that in any text."""

    class Key(str):
        __slots__ = ()

    assert "sk-" not in str(with_check(closing_over(Key("sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"))))


@dataclasses.dataclass
class AtLeast:
    characters: int

    def __call__(self, text):
        return len(text) >= self.characters


def test_what_python_generates_for_a_dataclass_is_not_compared():
    """F16: it differs between versions of Python, and a journal may be resumed with a later one."""
    now = with_check(AtLeast(1))
    described = now["requirements"][0]["check"]["methods"]
    assert ["__call__"] == list(described)
    then = {**now, "format": 2, "requirements": [{**now["requirements"][0]}]}
    check = now["requirements"][0]["check"]
    then["requirements"][0]["check"] = {**check, "methods": {**described, "__repr__": {"name": "wrapper"}}}
    assert [] == differences(then, now)


def test_the_content_of_a_file_is_seen(tmp_path):
    """F16: a file that a requirement reads may change under the same name."""
    file = tmp_path / "words.txt"
    file.write_text("a")
    before = with_check(closing_over(Path(file)))
    file.write_text("b")
    assert differences(before, with_check(closing_over(Path(file))))


def test_a_file_that_was_moved_is_the_same(tmp_path):
    """F11: a program may be in another folder when its run is resumed. A path without a file is a setting."""
    (tmp_path / "a").write_text("words")
    before = with_check(closing_over(tmp_path / "a"))
    assert [] == differences(before, with_check(closing_over((tmp_path / "a").rename(tmp_path / "b"))))
    assert differences(with_check(closing_over(Path("no/file"))), with_check(closing_over(Path("no/other"))))


def test_the_content_of_a_directory_and_the_order_of_a_dict_are_not_compared(tmp_path):
    """F16: as docs/how-to/resume.md says. Of a directory, the path counts."""
    before = with_check(closing_over((tmp_path, {"a": 1, "b": 2})))
    (tmp_path / "words.txt").write_text("a")
    after = with_check(closing_over((tmp_path, {"b": 2, "a": 1})))
    assert [] == differences(before, after) == after["unseen"]
    assert differences(with_check(closing_over(tmp_path)), with_check(closing_over(tmp_path.parent)))


def test_where_a_module_is_does_not_count(monkeypatch):
    """F11: a program may be in another folder when its run is resumed."""

    def check(text):
        return bool(__file__)

    before = with_check(check)
    monkeypatch.setitem(check.__globals__, "__file__", "elsewhere.py")
    assert [] == differences(before, with_check(check))


def test_a_counter_of_a_function_is_no_setting():
    """F11: an attribute that a function changes itself differs from call to call."""

    def check(text):
        check.calls += 1
        return True

    check.calls = 0
    before = with_check(check)
    check("")
    assert [] == differences(before, with_check(check))


def test_the_model_is_seen_and_its_address_is_not(run, tmp_path):
    """F16: another model is another run, another server of the same model is not."""
    path = tmp_path / "run.db"

    def backend(model, address):
        scripted = answering()
        scripted.model, scripted.base_url = model, address
        return scripted

    def call(*named):
        return run(fan_out, ONCE, numbers(2), None, backend(*named), journal=InlineJournal(path))

    call("m1", "http://a")
    call("m1", "http://b")
    with pytest.raises(JournalMismatch, match='model: was "m1", is "m2"'):
        call("m2", "http://a")


def test_what_cannot_be_seen_is_named_and_asked_about(run, tmp_path):
    """F16: an object that can't be compared is never taken for equal, unless it says what it is."""
    path = tmp_path / "run.db"
    opaque = memoryview(b"state")

    def call(on_change="refuse"):
        journal = InlineJournal(path, on_change=on_change)
        check = Requirement("opaque", closing_over(opaque))
        return run(fan_out, ONCE, numbers(2), None, answering(), [check], journal=journal)

    call()
    with pytest.raises(JournalMismatch, match=r"requirements\[0\].check.with.0 .*memoryview.*can't be compared"):
        call()
    assert 2 == call("continue").counts()["succeeded"]


def test_locks_and_loggers_change_no_answer():
    """F16: what can't decide an answer is not asked about."""
    pool = ThreadPoolExecutor(1)
    inert = [threading.Lock(), threading.Event(), contextvars.ContextVar("user"), pool]
    assert [] == with_check(closing_over(inert))["unseen"]


@pytest.mark.parametrize(
    "requirement",
    [
        checks.one_of("a", "b"),
        checks.matches("x+"),
        checks.length(max_words=9),
        checks.number(at_least=1),
        checks.json(),
        checks.json_schema({"type": "object"}),
        checks.model(Limits),
        checks.python_parses(),
        checks.judge("is nice", backend=ScriptedBackend(["yes"])),
        checks.all_of(checks.json(), checks.not_(checks.one_of("a"))),
        checks.any_of(checks.json(), checks.length(max_words=2)),
        checks.markdown(),
    ],
    ids=lambda requirement: requirement.description[:20],
)
def test_ready_made_requirements_can_be_compared(requirement):
    """F16: nothing of ours has to be asked about."""
    described = fingerprint(requirements=[requirement])
    assert [] == described["unseen"]
    assert [] == differences(described, fingerprint(requirements=[requirement]))


@pytest.mark.parametrize("strategy", [MultiTurnStrategy(loop_budget=2), tiers(1), MajorityVotingStrategy()])
def test_ready_made_strategies_can_be_compared(strategy):
    """F16: nothing of ours has to be asked about."""
    assert [] == fingerprint(strategy)["unseen"]


def test_the_code_of_a_strategy_is_seen():
    """F16: a decision that a subclass overrides decides answers."""

    def make(word):
        class Mine(RejectionSamplingStrategy):
            def select(self, slices):
                return slices[0] if word else slices[-1]

        return Mine()

    assert differences(fingerprint(make("")), fingerprint(make("x")))


def test_a_parser_that_gains_a_field_is_another_question():
    """F17: the type of the answer is a part of the question."""
    one = attrs.make_class("Answer", ["a"])
    two = attrs.make_class("Answer", ["a", "b"])
    assert item_digest(Action("q", one), 0) != item_digest(Action("q", two), 0)
    assert item_digest(Action("q"), 0) == item_digest("q", 0)


def test_a_constant_of_a_parser_is_a_part_of_the_question():
    """F17: and what earlier versions recorded, which did not see it, is the same question."""
    one, two = counting(1), counting(2)
    assert item_digest(Action("q", one), 0) != item_digest(Action("q", two), 0)
    assert earlier_item_digests(Action("q", one), 0)[-2:] == earlier_item_digests(Action("q", two), 0)[-2:]


class Tree(pydantic.BaseModel):
    """A type that contains itself."""

    children: "list[Tree]" = []


@pytest.mark.parametrize("kind", [Tree, list[Tree], Tree | None])
def test_a_recursive_type_is_seen(run, tmp_path, kind):
    """F11: an item that is read as a tree can be resumed."""
    for asked in (1, 0):
        backend = ScriptedBackend(['{"children": []}'] if kind is not list[Tree] else ["[]"])
        items = [Action("q", kind)]
        run(fan_out, ONCE, items, None, backend, journal=InlineJournal(tmp_path / "run.db"))
        assert asked == len(backend.requests)


class Shorter:
    """A parser with a setting."""

    def __init__(self, limit):
        self.limit = limit

    def __call__(self, text):
        return text[: self.limit]


def test_a_parser_that_changed_since_the_last_run_of_the_process_is_another_question(run, tmp_path):
    """F16: as in a notebook, where a setting is changed and the same cell runs again."""
    parser = Shorter(3)

    def call():
        return run(fan_out, ONCE, [Action("q", parser)], None, answering(), journal=InlineJournal(tmp_path / "run.db"))

    call()
    call()
    parser.limit = 4
    with pytest.raises(JournalMismatch, match=r"item 0 .*differs"):
        call()


GIVEN_UP = ValueError("given up")


class GivesUp(MultiTurnStrategy):
    """A strategy that raises an error of its module."""

    def repair(self, *_, **__):
        raise GIVEN_UP


def test_a_note_on_an_error_of_the_module_is_no_change(run, tmp_path):
    """F16: calls add notes to the errors that they raise, and the same process resumes the run."""
    no = Requirement("never", lambda _: False)

    def call():
        return run(
            fan_out,
            GivesUp(loop_budget=2),
            ["q"],
            None,
            answering(),
            [no],
            journal=InlineJournal(tmp_path / "run.db"),
            on_error="continue",
        )

    first = call()
    assert GIVEN_UP.__notes__
    assert [outcome.status for outcome in first.outcomes] == [outcome.status for outcome in call().outcomes]


def test_notes_that_an_earlier_version_described_are_no_difference():
    """F17: journals of earlier versions can be read."""
    call, error = fingerprint(), {"class": "ValueError", ".args": []}
    then = {**call, "uses": {"e": {**error, ".__notes__": ["n"]}}}
    assert [] == differences(then, {**call, "uses": {"e": error}})


def test_a_parser_that_cannot_be_seen_is_asked_about(run, tmp_path):
    """F16: it is never taken for equal, unless it says what it is."""
    path = tmp_path / "run.db"

    def call(parser, on_change="refuse"):
        journal = InlineJournal(path, on_change=on_change)
        return run(fan_out, ONCE, ["p", Action("q", parser)], None, answering(), journal=journal)

    def opaque():
        return closing_over(memoryview(b"state"))

    call(opaque())
    with pytest.raises(JournalMismatch, match=r"item 1: parser.with.0 .*memoryview.*can't be compared"):
        call(opaque())
    assert 2 == call(opaque(), "continue").counts()["succeeded"]


def test_options_are_compared_whole():
    """F16: a schema in the options too."""

    def described(field):
        return fingerprint_of(ONCE, [], None, Options(schema={"required": [field]}), None)

    assert differences(described("a"), described("b"))
