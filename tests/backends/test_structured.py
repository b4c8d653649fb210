"""Structured answers in three modes, and schemas that OpenAI's strict mode accepts."""

import dataclasses
import json
from datetime import date, datetime
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import attrs
import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel

from sampling import Action, Message, Options, RejectionSamplingStrategy, Request
from sampling._json.schemas import is_strict, strict_schema
from sampling.backends._structured import answer_schema
from sampling.backends.openai import OpenAIBackend
from sampling.testing.servers import HostileServer

# https://platform.openai.com/docs/guides/structured-outputs#supported-schemas, as summarised at
# https://jsonschemaprofiles.unitvectorylabs.com/schemas/openai in February 2026.
TYPES = {"string", "number", "boolean", "integer", "object", "array", "null"}
CONSTRAINTS = {
    "string": {"pattern", "format"},
    "number": {"multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"},
    "array": {"minItems", "maxItems", "items"},
    "object": {"properties", "required", "additionalProperties"},
}
FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
EVERYWHERE = {"type", "title", "description", "enum", "const", "anyOf", "$ref", "$defs"}


def problems(schema):  # noqa: C901 - the rules, one after the other
    """Return what strict mode refuses in a schema, by the published rules and the messages of its refusals."""
    found, names, values = [], [], []
    if schema.get("type") != "object" or "anyOf" in schema:
        found.append("the root must be an object and no anyOf")

    def walk(node, path):  # noqa: C901
        if "$ref" in node and set(node) - {"$ref", "$defs"}:
            found.append(f"{path}: $ref can't have siblings")
        values.extend([*node.get("enum", []), *([node["const"]] if "const" in node else [])])
        names.extend([*node.get("properties", {}), *node.get("$defs", {})])
        kinds = node.get("type", [])
        kinds = kinds if isinstance(kinds, list) else [kinds]
        if not kinds and not {"anyOf", "$ref", "enum", "const"} & node.keys():
            found.append(f"{path}: a schema must have a type")
        found.extend(f"{path}: unknown type {kind}" for kind in kinds if kind not in TYPES)
        allowed = set(EVERYWHERE).union(*[CONSTRAINTS.get("number" if k == "integer" else k, set()) for k in kinds])
        found.extend(f"{path}: {name} is not permitted" for name in node.keys() - allowed)
        if node.get("format", "date") not in FORMATS:
            found.append(f"{path}: format {node['format']} is not supported")
        if "object" in kinds:
            if node.get("additionalProperties") is not False:
                found.append(f"{path}: additionalProperties must be false")
            if set(node.get("required", ())) != set(node.get("properties", {})):
                found.append(f"{path}: all fields must be required")
        if "array" in kinds and "items" not in node:
            found.append(f"{path}: an array must have items")
        for name, inner in {**node.get("properties", {}), **node.get("$defs", {})}.items():
            walk(inner, f"{path}/{name}")
        for number, inner in enumerate(node.get("anyOf", [])):
            walk(inner, f"{path}/anyOf/{number}")
        if "items" in node:
            walk(node["items"], f"{path}/items")

    walk(schema, "")
    if len(values) > 1_000 or sum(len(str(value)) for value in values) + sum(map(len, names)) > 120_000:
        found.append("too many values of enums, or too long ones")
    return found


class Color(Enum):
    RED = "red"


class Inner(BaseModel):
    b: int


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


class Pair(NamedTuple):
    x: int
    y: str


class Noted(BaseModel):
    """Has notes that mean nothing to a validator."""

    what: str = Field(json_schema_extra={"x-widget": "text", "order": 1})


MANY = Enum("MANY", {f"V{number}": f"value {number}" for number in range(1_001)})
LONG = Enum("LONG", {f"V{number}": f"{number:03} {'x' * 300}" for number in range(500)})


class Everything(BaseModel):
    """Has all that strict mode used to refuse."""

    described: Inner = Field(description="beside a reference")
    pair: tuple[int, str]
    tags: set[str]
    either: Inner | int
    animal: Annotated[Cat | Dog, Field(discriminator="kind")]
    named: Pair
    color: Color
    when: datetime
    uid: UUID
    short: Annotated[str, Field(max_length=3, pattern="^a")]
    count: int = 3
    maybe: str | None = None
    child: "Everything | None" = Field(default=None, description="recursive")


@dataclasses.dataclass
class Plain:
    day: date
    seats: tuple[int, ...] = ()


@attrs.frozen
class Classy:
    inner: Plain
    others: "list[Classy]" = attrs.field(factory=list)


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")


class Prices(BaseModel):
    of: dict[str, int]


class Anything(BaseModel):
    what: Any


STRICT = [
    Everything,
    Plain,
    Classy,
    Inner,
    list[Inner],
    Color,
    Inner | int,
    tuple[int, str],
    RootModel[list[int]],
    Noted,
]
NOT_STRICT = [Loose, Prices, Anything, dict[str, int], MANY, LONG]


def sent(parser):
    return answer_schema(Action("…", parser).schema)


class TestStrictSchemas:
    @pytest.mark.parametrize("parser", STRICT, ids=str)
    def test_what_is_sent_as_strict_is_accepted(self, parser):
        """Nested descriptions, tuples, sets, unions, defaults and recursion are written as strict mode takes them."""
        schema = sent(parser)
        assert schema.strict
        assert [] == problems(schema.schema)

    @pytest.mark.parametrize("parser", NOT_STRICT, ids=str)
    def test_what_strict_mode_can_not_say_is_not_strict(self, parser):
        """A mapping with free keys has no strict schema, and the schema goes without."""
        schema = sent(parser)
        assert not schema.strict
        assert problems(schema.schema)

    @pytest.mark.parametrize("parser", [*STRICT, *NOT_STRICT], ids=str)
    def test_the_library_and_the_rules_agree(self, parser):
        """`is_strict` is what decides about a schema of the caller's own."""
        schema = sent(parser).schema
        assert is_strict(schema) == (not problems(schema))

    def test_dropped_constraints_are_told_in_words(self):
        """The model can still follow them, and the answer is validated."""
        schema = sent(Everything).schema["properties"]
        assert "maxLength: 3" == schema["short"]["description"]
        assert "beside a reference" == schema["described"]["description"]
        assert {"type": "null"} in schema["count"]["anyOf"]

    def test_a_default_is_kept_where_the_model_says_null(self):
        """Strict mode makes it say something."""
        text = json.dumps({"day": "2031-05-01", "seats": None})
        assert Plain(date(2031, 5, 1)) == Action("…", Plain).parse(text)

    def test_a_schema_of_the_callers_own_is_not_touched(self):
        """It is strict only if strict mode takes it as it is."""
        own = {"type": "object", "properties": {"a": {"type": "integer", "default": 1}}}
        assert own == answer_schema(own).schema
        assert not answer_schema(own).strict
        assert strict_schema(own)["required"] == ["a"]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def reply(**delta):
    chunk = {
        "choices": [{"index": 0, "delta": delta, "finish_reason": "tool_calls" if "tool_calls" in delta else "stop"}]
    }
    body = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
    return [b"HTTP/1.1 200 .\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body) + body]


class TestModes:
    async def ask(self, mode, script, **options):
        async with HostileServer(script) as server, OpenAIBackend(server.url, model="m", structured=mode) as backend:
            action = Action("Give b.", Inner)
            result = await RejectionSamplingStrategy().sample(action, None, backend, options=Options(**options))
        return server.requests[0].json(), result

    async def test_native(self):
        """The server gets the schema."""
        body, result = await self.ask("native", reply(content='{"b": 1}'))
        assert body["response_format"]["json_schema"]["strict"] is True
        assert "tools" not in body
        assert Inner(b=1) == result.value

    async def test_tool(self):
        """The model has to call a tool, and its arguments are the text."""
        call = {"index": 0, "id": "c", "function": {"name": "Inner", "arguments": '{"b": 2}'}}
        body, result = await self.ask("tool", reply(tool_calls=[call]))
        assert "required" == body["tool_choice"]
        (tool,) = body["tools"]
        assert tool["function"]["strict"] is True
        assert "response_format" not in body
        assert Inner(b=2) == result.value
        assert ("stop", ()) == (result.best.generation.finish_reason, result.best.generation.tool_calls)

    async def test_tool_passes_the_text_to_a_receiver(self):
        """Streaming and generating give the same text."""
        call = {"index": 0, "id": "c", "function": {"name": "Inner", "arguments": '{"b": 2}'}}
        pieces = []
        async with HostileServer(reply(tool_calls=[call])) as server:
            backend = OpenAIBackend(server.url, model="m", structured="tool")
            async with backend:
                request = Request((Message("user", "hi"),), Options(schema=Inner))
                assert '{"b": 2}' == (await backend.stream(request, pieces.append)).text
        assert ['{"b": 2}'] == pieces

    async def test_prompt(self):
        """The schema is in the last message, for servers that know neither."""
        body, result = await self.ask("prompt", reply(content='Sure: {"b": 3}'))
        assert {"model", "messages", "stream", "stream_options"} == body.keys()
        (message,) = body["messages"]
        assert message["content"].startswith("Give b.\n\nAnswer with JSON")
        assert json.loads(message["content"].rpartition("\n")[2])["required"] == ["b"]
        assert Inner(b=3) == result.value

    def test_an_unknown_mode_is_refused(self):
        """The error lists the modes."""
        with pytest.raises(ValueError, match="'native', 'tool' or 'prompt', got 'magic'"):
            OpenAIBackend("http://127.0.0.1:1", model="m", structured="magic")
