"""Typed output: the JSON of an answer becomes an object, and the schema of its class goes to the backend."""

import abc
import copy
import dataclasses
import enum
import sys
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Annotated, Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import attrs
import pytest
from pydantic import AfterValidator, BaseModel, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypedDict

from sampling import (
    Action,
    MissingExtra,
    MultiTurnStrategy,
    Options,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    checks,
)
from sampling._json.lenient import find_json
from sampling._schemas import output_types
from sampling._schemas.output_types import reader_for
from sampling.backends.openai import OpenAIBackend
from sampling.testing import ScriptedBackend
from sampling.testing.servers import OpenAIServer, Reply


class Seat(enum.Enum):
    WINDOW = "window"
    AISLE = "aisle"


@attrs.frozen
class AttrsFlight:
    number: str
    day: date
    seat: Seat | None = None
    _internal: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    computed: str = attrs.field(init=False, default="x")


@dataclasses.dataclass(frozen=True)
class DataFlight:
    number: str
    day: date
    seat: Seat | None = None


class ModelFlight(BaseModel):
    number: str
    day: date
    seat: Seat | None = None


@pydantic_dataclass
class PydanticDataFlight:
    number: str
    day: date
    seat: Seat | None = None


class DictFlight(TypedDict):
    number: str
    day: date


@attrs.frozen
class Trip:
    """Nested attrs classes in containers, beside a dataclass."""

    flights: list[AttrsFlight]
    back: DataFlight | None = None
    notes: dict[str, tuple[int, ...]] = attrs.Factory(dict)
    kind: Literal["work", "fun"] = "fun"
    people: Annotated[int, Field(ge=1, le=9)] = 1
    anything: Any = None


@attrs.frozen
class Strict:
    name: Any = attrs.field(validator=attrs.validators.instance_of(str))


class Unknown:
    """A type without a JSON representation."""


@attrs.frozen
class HoldsUnknown:
    unknown: Unknown


CLASSES = [AttrsFlight, DataFlight, ModelFlight, PydanticDataFlight]
ANSWER = '{"number": "LH400", "day": "2031-05-01", "seat": "window"}'

every_class = pytest.mark.parametrize("shape", CLASSES, ids=lambda shape: shape.__name__)


class TestReading:
    @every_class
    def test_a_class_is_made_of_json(self, shape):
        """Annotations such as dates and enums are converted."""
        assert shape(number="LH400", day=date(2031, 5, 1), seat=Seat.WINDOW) == Action("q", shape).parse(ANSWER)

    def test_a_typed_dict_is_one_too(self):
        """The value of a typed dict is a dict."""
        assert {"number": "a", "day": date(2031, 5, 1)} == Action("q", DictFlight).parse(
            '{"number": "a", "day": "2031-05-01"}'
        )

    def test_containers_and_nested_classes(self):
        """Nested classes are constructed at every level."""
        text = f'{{"flights": [{ANSWER}], "back": {ANSWER}, "notes": {{"a": [1, 2]}}, "kind": "work", "people": 2}}'
        expected = Trip(
            [AttrsFlight("LH400", date(2031, 5, 1), Seat.WINDOW)],
            DataFlight("LH400", date(2031, 5, 1), Seat.WINDOW),
            {"a": (1, 2)},
            "work",
            2,
        )
        assert expected == Action("q", Trip).parse(text)
        assert [expected] == Action("q", list[Trip]).parse(f"[{text}]")
        assert {"x": expected, "y": None} == Action("q", dict[str, Trip | None]).parse(f'{{"x": {text}, "y": null}}')

    def test_defaults_and_private_names_are_those_of_the_constructor(self):
        """Fields with a default are optional, and `_internal` is `internal`, as in attrs."""
        flight = Action("q", AttrsFlight).parse('{"number": "a", "day": "2031-05-01", "internal": 3}')
        assert AttrsFlight("a", date(2031, 5, 1), None, 3) == flight

    @every_class
    def test_what_there_is_no_field_for_is_ignored(self, shape):
        """Additional keys do not make an answer invalid."""
        assert shape(number="a", day=date(2031, 5, 1)) == Action("q", shape).parse(
            '{"number": "a", "day": "2031-05-01", "note": "!"}'
        )

    @pytest.mark.parametrize(
        "text",
        [
            f"```json\n{ANSWER}\n```",
            f"Sure! Here it is:\n\n  ~~~~ JSON\r\n{ANSWER}\r\n  ~~~~\nAnything else?",
            f"\n {ANSWER} \n",
            f"```json\n{ANSWER}",
            f"Sure! ```json\n{ANSWER}\n```\nAnything else?",
            f"Sure! ```\n{ANSWER}\n```",
        ],
    )
    def test_a_fence_does_no_harm(self, text):
        """Code fences, closed or not, and the text around them are removed."""
        assert "LH400" == Action("q", ModelFlight).parse(text).number

    def test_a_function_gets_the_text(self):
        """Only classes with fields, and containers, are read as JSON."""
        assert 3 == Action("q", int).parse("3")
        assert Seat.AISLE is Action("q", Seat).parse("aisle")
        assert "x" == Action("q", checks.unfenced).parse("```\nx\n```")
        assert Action("q", int).schema is None

    def test_a_reader_is_made_once(self):
        """Creating one takes longer than reading a hundred answers."""
        assert reader_for(Trip) is reader_for(Trip)
        assert Action("q", Trip) == Action("q", Trip)
        assert hash(Action("q", Trip)) == hash(Action("q", Trip))
        assert Action("q", Trip) == copy.deepcopy(Action("q", Trip))
        assert "Action(text='q', parser=<reads Trip from JSON>)" == repr(Action("q", Trip))


class TestWhatIsTold:
    @every_class
    def test_each_problem_is_told_with_its_place(self, shape):
        """S17: the reason lists all problems, with their place and what is allowed."""
        with pytest.raises(ValueError, match="day") as caught:
            Action("q", shape).parse('{"day": "2031-05-32", "seat": "middle"}')
        message = str(caught.value)
        assert "/number is missing" in message
        assert "at /day: input should be a valid date" in message
        assert "at /seat: input should be 'window' or 'aisle', got 'middle'" in message

    def test_nested_places_are_pointers(self):
        """Special characters in names are escaped as in JSON pointers."""
        with pytest.raises(ValueError, match=r"at /flights/0/number: input should be a valid string, got 7") as caught:
            Action("q", Trip).parse(
                '{"flights": [{"number": 7, "day": "2031-05-01"}], "notes": {"a/b~c": ["x"]}, "people": 10}'
            )
        assert "at /notes/a~1b~0c/0: input should be a valid integer" in str(caught.value)
        assert "at /people: input should be less than or equal to 9, got 10" in str(caught.value)

    @pytest.mark.parametrize(
        ("shape", "text", "words"),
        [
            (AttrsFlight, '{"number": "a", "day": "2031-05-01", "internal": -1}', "'_internal' must be >= 0: -1"),
            (Strict, '{"name": 5}', "'name' must be <class 'str'>"),
        ],
    )
    def test_what_a_validator_of_attrs_refuses_is_told(self, shape, text, words):
        """The reason includes the message of any exception that an attrs validator raises."""
        with pytest.raises(ValueError, match="at the top level: value error") as caught:
            Action("q", shape).parse(text)
        assert words in str(caught.value)

    @pytest.mark.parametrize(
        "text", ["Sure!", "", '{"number": "a"', '{"a": 1, "a": 2}', "[" * 100_000, '{"number": NaN}', "9" * 5_000]
    )
    def test_what_is_not_json_is_told_how_to_answer(self, text):
        """Row 78: JSON that is too deep or ambiguous does not reach pydantic."""
        with pytest.raises(ValueError, match=r"it is not JSON .*: answer with one JSON value"):
            Action("q", ModelFlight).parse(text)

    def test_a_long_value_is_cut(self):
        """Long values are truncated in the reason."""
        with pytest.raises(ValueError, match="number") as caught:
            Action("q", ModelFlight).parse(f'{{"number": {[1] * 10_000}, "day": "2031-05-01"}}')
        assert len(str(caught.value)) < 200

    @pytest.mark.parametrize(
        ("shape", "words"),
        [(HoldsUnknown, "HoldsUnknown: Unable to generate")],
    )
    def test_a_class_that_json_can_not_hold_is_refused(self, shape, words):
        """The error is raised when the action is created."""
        with pytest.raises(TypeError, match=words):
            Action("q", shape)

    def test_the_extra_is_named_where_it_is_missing(self, monkeypatch):
        """The error has the command that installs it."""
        monkeypatch.setitem(sys.modules, "pydantic", None)
        # Another test may have made the reader of the same type.
        output_types._cached_reader.cache_clear()
        with pytest.raises(
            MissingExtra, match=r'list\[int\] needs the package \'pydantic\': pip install "sampling\[pydantic\]"'
        ):
            Action("q", list[int])


async def sample(action, backend, strategy=None, reqs=(), **arguments):
    return await (strategy or RejectionSamplingStrategy()).sample(action, None, backend, reqs, **arguments)


class TestInACall:
    @every_class
    def test_the_value_of_the_result_is_of_the_class(self, run, shape):
        """Checks see the object, too."""
        seen = []

        def after_2030(text, view):
            seen.append(view.value)
            return view.value.day.year > 2030

        result = run(sample, Action("q", shape), ScriptedBackend([ANSWER]), reqs=[after_2030])
        assert shape(number="LH400", day=date(2031, 5, 1), seat=Seat.WINDOW) == result.unwrap() == seen[0]

    @pytest.mark.parametrize("strategy", [MultiTurnStrategy, RepairTemplateStrategy])
    def test_a_repair_tells_what_was_wrong_and_parses_in_the_same_way(self, run, strategy):
        """S13, S14, S17: the repair also sends the schema."""
        backend = ScriptedBackend(['{"number": "a"}', ANSWER])
        result = run(sample, Action("q", DataFlight), backend, strategy(loop_budget=2))
        assert DataFlight("LH400", date(2031, 5, 1), Seat.WINDOW) == result.unwrap()
        assert "- the answer can be parsed: /day is missing" in backend.requests[1].messages[-1].content
        assert [Action("q", DataFlight).schema] * 2 == [request.options.schema for request in backend.requests]

    def test_the_schema_of_the_class_goes_to_the_backend(self, run):
        """The schema allows no additional properties, and a pydantic model is passed unchanged."""
        backend = ScriptedBackend([ANSWER, ANSWER])
        run(sample, Action("q", DataFlight), backend)
        run(sample, Action("q", ModelFlight), backend)
        schema, model = (request.options.schema for request in backend.requests)
        assert ModelFlight is model
        assert ("object", False, ["number", "day"]) == (
            schema["type"],
            schema["additionalProperties"],
            schema["required"],
        )
        assert {"format": "date", "title": "Day", "type": "string"} == schema["properties"]["day"]

    def test_the_callers_options_win(self, run):
        """The schema and the other options of the caller are kept."""
        backend = ScriptedBackend([ANSWER, ANSWER])
        own = {"type": "object"}
        run(sample, Action("q", DataFlight), backend, options=Options(schema=own, temperature=0.5))
        run(sample, Action("q", DataFlight), backend, options=Options(temperature=0.5))
        assert [own, Action("q", DataFlight).schema] == [request.options.schema for request in backend.requests]
        assert [0.5, 0.5] == [request.options.temperature for request in backend.requests]

    def test_a_function_may_come_with_a_schema(self, run):
        """A function can have a schema, and a class can override its own."""
        backend = ScriptedBackend(["3", ANSWER])
        number = {"type": "integer"}
        run(sample, Action("q", int, schema=number), backend)
        run(sample, attrs.evolve(Action("q", ModelFlight), schema=None), backend)
        assert [number, None] == [request.options.schema for request in backend.requests]


@pytest.mark.anyio
@pytest.mark.parametrize("shape", [ModelFlight, AttrsFlight, DataFlight], ids=lambda shape: shape.__name__)
async def test_a_server_is_asked_for_json_of_that_shape(shape):
    """The schema is sent as `response_format`."""
    async with OpenAIServer(Reply([ANSWER])) as server, OpenAIBackend(server.url, model="m") as backend:
        result = await RejectionSamplingStrategy().sample(Action("Which flight?", shape), None, backend)
    sent = server.requests[0].json()["response_format"]
    assert ("json_schema", shape.__name__) == (sent["type"], sent["json_schema"]["name"])
    assert {"number", "day", "seat"} <= sent["json_schema"]["schema"]["properties"].keys()
    assert sent["json_schema"]["schema"]["additionalProperties"] is False
    assert shape(number="LH400", day=date(2031, 5, 1), seat=Seat.WINDOW) == result.unwrap()


def test_a_requirement_for_those_who_want_the_text():
    """`checks.model` checks the answer, and leaves the value as text."""
    requirement = checks.model(AttrsFlight)
    assert requirement.read_verdict(requirement.check(ANSWER)).passed
    failed = requirement.read_verdict(requirement.check('{"day": "2031-05-01"}'))
    assert (False, "/number is missing") == (failed.passed, failed.reason)
    assert "is the JSON of a AttrsFlight" == requirement.description


def test_a_requirement_names_a_type_without_its_validators():
    """F11: the text of a function has an address, so it would differ in every process, and confuse a model."""
    positive = Annotated[int, AfterValidator(abs)]
    assert "is the JSON of a list[int]" == checks.model(list[positive]).description
    assert "is the JSON of a int" == checks.model(positive).description


# Types beyond classes with fields, and answers with more than JSON.


class Color(Enum):
    RED = "red"
    GREEN = "green"


class Point(NamedTuple):
    x: int
    y: int = 0


U = TypeVar("U")


@dataclasses.dataclass
class Box(Generic[U]):
    inside: U


@attrs.frozen
class Tree:
    """A recursive attrs class."""

    name: str
    children: "list[Tree]" = attrs.field(factory=list)


@attrs.frozen
class AttrsBox(Generic[U]):
    inside: U
    others: list[U] = attrs.field(factory=list)


@dataclasses.dataclass
class Link:
    value: Annotated[int, Field(gt=0)]
    size: Annotated[int, Field(le=9)] = 1
    next: "Link | None" = None


@dataclasses.dataclass
class Forest:
    """A dataclass with an attrs class in it, which pydantic does not know."""

    trees: list[Tree]
    density: Annotated[int, Field(gt=0)] = 1


@pytest.mark.parametrize(
    ("parser", "text", "value"),
    [
        (bool, "false", False),
        (bool, "True.", True),
        (bool, " **No** ", False),
        (Color, "red", Color.RED),
        (Color, '"green"', Color.GREEN),
        (Color, '{"value": "green"}', Color.GREEN),
        (Literal["a", "b"], "b", "b"),
        (datetime, "2024-05-01T10:00:00", datetime(2024, 5, 1, 10)),
        (date, '{"value": "2024-05-01"}', date(2024, 5, 1)),
        (timedelta, "PT2S", timedelta(seconds=2)),
        (Point, "[1, 2]", Point(1, 2)),
        (Point, '{"value": [1, 2]}', Point(1, 2)),
        (list, "[1, 2]", [1, 2]),
        (dict, '{"a": 1}', {"a": 1}),
        (list[int], '{"value": [1]}', [1]),
        (tuple[int, str], '[1, "a"]', (1, "a")),
        (set[int], "[1, 1]", {1}),
        (int | None, "null", None),
        (Box[int], '{"inside": 3}', Box(3)),
        (AttrsBox[int], '{"inside": 3, "others": [4]}', AttrsBox(3, [4])),
        (Tree, '{"name": "a", "children": [{"name": "b"}]}', Tree("a", [Tree("b")])),
        (Forest, '{"trees": [{"name": "a", "children": [{"name": "b"}]}]}', Forest([Tree("a", [Tree("b")])])),
        (Link, '{"value": 1, "next": {"value": 2}}', Link(1, 1, Link(2))),
        (Link, '{"value": 1, "size": null}', Link(1)),
    ],
)
def test_a_type_reads_its_value(parser, text, value):
    """Enums, dates, tuples, generic and recursive classes. A value that is no object may be wrapped in one."""
    assert value == Action("…", parser).parse(text)


@pytest.mark.parametrize(
    ("parser", "text", "problem"),
    [
        (bool, "perhaps", "answer with true or false"),
        (Color, "purple", "'red' or 'green'"),
        (datetime, "tomorrow", "datetime"),
        (Link, '{"value": 0}', "/value: input should be greater than 0"),
        (Link, '{"value": 1, "size": 10}', "/size: input should be less than or equal to 9"),
        (Link, '{"value": null}', "at /value"),
        (Forest, '{"trees": [], "density": 0}', "/density"),
        (Tree, '{"name": "a", "children": [{}]}', "/children/0/name is missing"),
        (list[int], "[1] and [2]", "not JSON"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(parser, text, problem):
    """The constraints of dataclass fields are kept, also those of nested ones."""
    with pytest.raises(ValueError, match=problem):
        Action("…", parser).parse(text)


class Parser(Protocol):
    def __call__(self, text): ...


class Struct:
    """As those of msgspec, which can be called with the value of the first field."""

    __struct_fields__ = ("x",)

    def __init__(self, x):
        self.x = x


@pytest.mark.parametrize("parser", [bytes, object, type(None), Callable[[int], str], type, Any, Parser, Struct])
def test_a_type_that_no_answer_fits_is_refused_at_construction(parser):
    """A type that no answer can match is refused when the action is created."""
    with pytest.raises(TypeError, match="parser must be a type that can be read from"):
        Action("…", parser)


class Plain:
    x: int


class TwoArguments:
    def __init__(self, x, y): ...


class OfText:
    def __init__(self, text, strict=True):
        self.text = text


@pytest.mark.parametrize(
    "parser", [Plain, TwoArguments, lambda: 1, lambda a, b: a, lambda a, *, b: a, partial(divmod, 1, 2), abc.ABC]
)
def test_a_parser_that_takes_no_text_is_refused_at_construction(parser):
    """A parser that can't be called with a text is refused when the action is created."""
    with pytest.raises(TypeError, match=r"parser must be a function of the answer's text, .*can't be called with a"):
        Action("…", parser)


@pytest.mark.parametrize("parser", [OfText, lambda a, b=1: a, lambda *a: a, partial(int, base=2), int, str.strip, len])
def test_a_parser_that_takes_a_text_is_called_with_it(parser):
    """A parser may have further parameters with defaults."""
    assert Action("…", parser).parse("1")


@pytest.mark.parametrize("parser", [float, Decimal, float | None, Annotated[float, Field(ge=0)], list[float]])
@pytest.mark.parametrize("text", ["nan", "inf", "-Infinity", "NaN", "1e999", "[1e999]"])
def test_a_number_that_json_does_not_have_is_no_answer(parser, text):
    """It would pass most checks, and make every sum useless."""
    if parser is Decimal and text == "1e999":
        assert Decimal("1e999") == Action("…", parser).parse(text)
        return
    with pytest.raises(ValueError, match=r"finite number|not JSON|input should be|could not|with a number"):
        Action("…", parser).parse(text)


def test_large_numbers_that_are_finite_are_read():
    """Only those beyond the range of a float are not."""
    assert [1e300, 1e200] == Action("…", list[float]).parse("[1e300, 1e200]")
    assert 1e300 == Action("…", float).parse("1e300")


JSON_ANSWER = '{"a": [1, 2]}'


@pytest.mark.parametrize(
    "text",
    [
        JSON_ANSWER,
        f"```json\n{JSON_ANSWER}\n```",
        f"Sure! Here it is:\n```\n{JSON_ANSWER}\n```\nAnything else?",
        f"Sure, here it is: {JSON_ANSWER} Anything else?",
        f'He said "hi, and: {JSON_ANSWER}',
        f"See [1] and [2]. {JSON_ANSWER}",
        f'<think>Is it {{"a": [3]}}?</think>\n{JSON_ANSWER}',
        f"I wonder.</think>{JSON_ANSWER}",
        '{"a": [1, 2,],}',
        f"{{ not JSON }} {JSON_ANSWER}",
        f"{JSON_ANSWER}\n{JSON_ANSWER}",
        f"```python\nprint(1)\n```\nIt prints:\n```json\n{JSON_ANSWER}\n```",
        "Here's it: {'a': [1, 2]}, isn't it?",
        "{a: [1, 2]}",
        '// the answer\n{"a": [1, /* one */ 2]} // two',
        f"See https://example.com/{{id}} {JSON_ANSWER}",
    ],
)
def test_json_is_found_in_an_answer(text):
    """Before a repair is paid for: fences, prose, thoughts, trailing commas, comments and quotes."""
    assert {"a": [1, 2]} == Action("…", dict[str, list[int]]).parse(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": True, "b": None}', {"a": True, "b": None}),
        ('{"a": "x\ny, ]", "b": "None"}', {"a": "x\ny, ]", "b": "None"}),
        ("{'a': 'it\\'s \"so\"', b: \"it's // {c: 1}\"}", {"a": 'it\'s "so"', "b": "it's // {c: 1}"}),
        ("{'a': '', \"b\": '\u00e9\\n'}", {"a": "", "b": "é\n"}),
    ],
)
def test_small_mistakes_are_mended(text, value):
    """Python's constants and line breaks in strings, and nothing inside of strings is touched."""
    assert value == Action("…", dict[str, Any]).parse(text)


def test_of_two_values_none_is_chosen():
    """An example in the prose may not be taken for the answer."""
    with pytest.raises(ValueError, match="not JSON"):
        Action("…", dict[str, list[int]]).parse(f'Either {JSON_ANSWER} or {{"a": [3]}}')


class Sized(BaseModel):
    size: int
    parts: list["Sized"] = []


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (dict[str, Any], '{"a": {"b": 1}, "c":'),
        (Sized, '{"size": 1, "parts": [{"size": 2, "parts": []}'),
        (Sized, '```json\n{"size": 1, "parts": [{"size": 2, "parts": []},\n```'),
        (Sized, "{'size': 1, 'parts': [{'size': 2, 'parts': []}"),
        (list[list[int]], "[[1, 2], [3"),
        (list[int], '{"value": [1, 2], "x'),
        (dict[str, Any], '{"a": 1'),
        (dict[str, Any], '{"a": "b'),
    ],
)
def test_what_is_inside_of_a_part_of_an_answer_is_not_the_answer(shape, text):
    """A model that was cut off may have closed an inner value of the same type."""
    with pytest.raises(ValueError, match="not JSON"):
        Action("…", shape).parse(text)


@pytest.mark.parametrize("text", [f"Here: {JSON_ANSWER}", '{"a": [1,],}', f"<think></think>{JSON_ANSWER}"])
def test_a_strict_action_takes_only_json(text):
    """`lenient=False`, which a copy keeps. A fence is allowed."""
    action = copy.deepcopy(Action("…", dict[str, list[int]], lenient=False))
    with pytest.raises(ValueError, match="not JSON"):
        action.parse(text)
    assert {"a": [1, 2]} == action.parse(f"```\n{JSON_ANSWER}\n```")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{'" * 100_000,
        "{/*" * 60_000,
        "{a" * 100_000,
        "{'\\" * 80_000,
        "{//" * 80_000,
        '{"a":' * 50_000,
        '{"a": "' + '\\"' * 100_000,
        "{," * 100_000,
        ", " * 200_000,
        "```\n{" * 50_000,
    ],
)
def test_hostile_text_is_given_up(text):
    """No mistake of a model, and no malice, makes reading slow: the suite's time limit would tell."""
    assert find_json(text) in text
