"""Schemas as the APIs of Gemini and Anthropic document them, for the types that applications use."""

import dataclasses
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Generic, Literal, NamedTuple, Optional, TypeVar
from uuid import UUID

import attrs
import pytest
from pydantic import BaseModel, Field, HttpUrl, RootModel, computed_field, create_model
from typing_extensions import TypedDict

from sampling import Action, Message, Options, Request
from sampling.backends.anthropic._schema import native_schema
from sampling.backends.gemini._request import gemini_body

T = TypeVar("T")


class Color(Enum):
    RED = "red"
    NONE = None


class Level(IntEnum):
    LOW = 1


class Inner(BaseModel):
    x: int
    y: str = "a"


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]
    good: Literal[True]


class Tree(BaseModel):
    value: int
    children: list["Tree"]


class Left(BaseModel):
    right: Optional["Right"]


class Right(BaseModel):
    left: Left | None = None


class Box(BaseModel, Generic[T]):
    item: T
    more: list[T]


class Typed(TypedDict, total=False):
    a: int


class Named(NamedTuple):
    a: int
    b: str = "x"


@dataclasses.dataclass
class Limited:
    a: Annotated[int, Field(ge=1, lt=5, multiple_of=2)]
    b: Annotated[str, Field(min_length=2, max_length=9, pattern="^a")] = "aa"


@attrs.define
class Classy:
    a: int
    b: str | None = None


class Computed(BaseModel):
    a: int = Field(alias="theA", description="An a.", examples=[1])

    @computed_field
    @property
    def twice(self) -> int:
        return 2 * self.a


class Many(BaseModel):
    inner: Inner = Field(description="An inner one.")
    maybe: int | None = None
    color: Color
    level: Level
    word: Literal["a", 1, None, True]  # noqa: PYI061 - one enum with null in it
    animal: Cat | Dog = Field(discriminator="kind")
    pair: tuple[int, str]
    tags: set[str]
    when: tuple[datetime, date, time, timedelta]
    amount: Decimal
    uid: UUID
    url: HttpUrl
    few: Annotated[list[int], Field(min_length=2, max_length=4)]


TYPES = [Many, Tree, Left, Box[int], Box[Inner], RootModel[list[int]], Typed, Named, Limited, Classy, Computed, Color]
TYPES += [Inner | int, list[Tree], Inner | None, Annotated[Cat | Dog, Field(discriminator="kind")], tuple[int, str]]
FREE = [dict[str, Inner], create_model("Free", of=(dict[str, int], ...)), create_model("Anything", of=(Any, ...))]
UNIONS = [create_model(f"Defaults{n}", **{f"f{i}": (int, 1) for i in range(n)}) for n in (16, 17)]


def nodes(schema):
    """Return all schemas inside of a schema, and itself."""
    named = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    listed = [*schema.get("anyOf", []), *schema.get("oneOf", []), *schema.get("prefixItems", [])]
    inner = [schema[name] for name in ("items", "additionalProperties") if isinstance(schema.get(name), dict)]
    return [schema, *[one for node in (*named, *listed, *inner) for one in nodes(node)]]


# https://ai.google.dev/api/generate-content#FIELDS.response_json_schema
GEMINI = {
    "$id",
    "$defs",
    "$ref",
    "$anchor",
    "type",
    "format",
    "title",
    "description",
    "enum",
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
}
GEMINI |= {"minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties", "required", "propertyOrdering"}


def requires_itself(schema, name):
    """Return whether a definition is needed for its own required properties."""
    node = schema["$defs"][name]
    return any(
        one.get("$ref", "").endswith(f"/{name}")
        for inner in nodes(node)
        for wanted in inner.get("required", ())
        for one in nodes(inner["properties"][wanted])
    )


def gemini_problems(schema):
    found = [name for node in nodes(schema) for name in node.keys() - GEMINI]
    found += ["$ref has siblings" for node in nodes(schema) if "$ref" in node and any(n[0] != "$" for n in node)]
    values = [value for node in nodes(schema) for value in node.get("enum", ())]
    found += [
        f"enum of {value}" for value in values if isinstance(value, bool) or not isinstance(value, str | int | float)
    ]
    return found + [f"{name} requires itself" for name in schema.get("$defs", {}) if requires_itself(schema, name)]


# https://platform.claude.com/docs/en/build-with-claude/structured-outputs#json-schema-limitations
ANTHROPIC = {
    "$defs",
    "$ref",
    "type",
    "format",
    "title",
    "description",
    "enum",
    "const",
    "items",
    "minItems",
    "anyOf",
    "default",
}
ANTHROPIC |= {"properties", "additionalProperties", "required"}
FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}


def anthropic_problems(schema):
    every = nodes(schema)
    found = [name for node in every for name in node.keys() - ANTHROPIC]
    found += [f"format {node['format']}" for node in every if node.get("format", "date") not in FORMATS]
    found += ["minItems" for node in every if node.get("minItems", 0) > 1]
    objects = [node for node in every if node.get("type") == "object"]
    found += ["additionalProperties" for node in objects if node.get("additionalProperties") is not False]
    found += ["enum" for node in every for value in node.get("enum", ()) if isinstance(value, dict | list)]
    return found + (["too many unions"] if sum("anyOf" in node for node in every) > 16 else [])


@pytest.mark.parametrize("shape", [*TYPES, *FREE, *UNIONS], ids=str)
def test_gemini_gets_what_it_documents(shape):
    """Keywords, enums of texts and numbers, and no definition that requires itself."""
    options = Options(schema=Action("…", shape).schema)
    sent = gemini_body(_request(options), "m", "native", include_thoughts=False)
    assert [] == gemini_problems(sent["generationConfig"]["responseJsonSchema"])


def _request(options):
    return Request((Message("user", "hi"),), options)


@pytest.mark.parametrize("shape", [*TYPES, *FREE, *UNIONS], ids=str)
def test_anthropic_gets_what_it_documents_or_a_tool(shape):
    """A schema that it would refuse is not sent as one."""
    schema = native_schema(Action("…", shape).schema)
    assert schema is None or [] == anthropic_problems(schema)
    assert (schema is None) is (shape in [*FREE, Tree, list[Tree], Left, UNIONS[1]])


def test_a_required_list_of_itself_is_optional_for_gemini_only_where_it_has_to_be():
    """The answer is validated, so what is missing is repaired."""
    options = Options(schema=Action("…", list[Tree]).schema)
    schema = gemini_body(_request(options), "m", "native", include_thoughts=False)["generationConfig"]
    schema = schema["responseJsonSchema"]
    assert (["value"], ["value"]) == (schema["required"], schema["$defs"]["Tree"]["required"])
