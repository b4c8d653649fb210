"""Tools made by hand, and of functions."""

import gc
import weakref
from functools import partial
from typing import Annotated, Literal

import attrs
import pytest

from sampling import Options, Tool, ToolCall, tool

SCHEMA = {"type": "object", "properties": {}}


def search(query: str, where: Literal["web", "mail"] = "web", *, limit: int = 3) -> list[str]:
    """
    Search for words.

    Args:
        query: The words,
            all of them.
        limit: The number of results.
    """
    return [query, where] * limit


def test_a_function_becomes_a_tool():
    """Its name, docstring and parameters say all that a model needs."""
    made = tool(search)
    assert ("search", "Search for words.") == (made.name, made.description)
    assert {
        "type": "object",
        "additionalProperties": False,
        "required": ["query"],
        "properties": {
            "query": {"type": "string", "description": "The words, all of them."},
            "where": {"type": "string", "enum": ["web", "mail"]},
            "limit": {"type": "integer", "description": "The number of results."},
        },
    } == made.schema
    assert ["a", "web"] == made("a", limit=1)


def test_arguments_are_validated_by_the_annotations():
    """The reason is one that a model can act on."""
    made = tool(search)
    assert {"query": "a", "limit": 2} == made.arguments_of(ToolCall("1", "search", '{"query": "a", "limit": 2}'))
    with pytest.raises(ValueError, match="at /limit: input should be a valid integer"):
        made.arguments_of(ToolCall("1", "search", '{"query": "a", "limit": "many"}'))


def untyped(query):
    """Search."""


def yielding(query: str):
    yield query


async def yielding_later(query: str):
    yield query


def greedy(*words: str) -> None:
    """Search."""


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: tool(untyped), TypeError, "an annotation for every parameter, and untyped has none for 'query'"),
        (lambda: tool(greedy), TypeError, "named parameters only"),
        (lambda: tool(lambda: 3), ValueError, "got a lambda"),
        (lambda: tool(yielding), TypeError, "yielding yields: return a list"),
        (lambda: tool(yielding_later), TypeError, "yielding_later yields: return a list"),
        (lambda: Tool("a", "", SCHEMA, yielding_later), TypeError, "a yields"),
        (lambda: tool(3), TypeError, "a function"),
        (lambda: Tool("a b", "", SCHEMA), ValueError, "ASCII letters"),
        (lambda: Tool("a", "", None), TypeError, "schema must be"),
        (lambda: Tool("a", "", {"type": "string"}), ValueError, "that of an object"),
        (lambda: Tool("a", "", {**SCHEMA, "x": {1}}), ValueError, "JSON values"),
        (lambda: Tool("a", "", {**SCHEMA, "properties": 3}), ValueError, "must be an object of schemas"),
        (lambda: Options(tools=[Tool("a", "", SCHEMA), Tool("a", "", SCHEMA)]), ValueError, "'a' twice"),
        (lambda: Options(tools=[Tool("a", "", SCHEMA)], tool_choice="b"), ValueError, "'required', 'a', got 'b'"),
        (lambda: Options(tools=[3]), TypeError, "a Tool or a function"),
        (lambda: Options(top_p=1.5), ValueError, "top_p must be <= 1"),
        (lambda: Options(top_k=-1), ValueError, "top_k must be >= 0"),
        (lambda: Options(frequency_penalty=3), ValueError, "frequency_penalty must be <= 2"),
        (lambda: Options(logit_bias={"x": 1}), TypeError, "a token id in logit_bias"),
        (lambda: Options(reasoning_effort="much"), ValueError, "reasoning_effort must be one of 'none'"),
        (lambda: Options(extra={"max_completion_tokens": 9}), ValueError, "Use Options\\(max_tokens"),
        (lambda: Options(extra={"extra_body": {"n": 9}}), ValueError, "extra must not set 'n'"),
        (lambda: Options(extra={"max-tokens": 9}), ValueError, "Use Options\\(max_tokens"),
        (lambda: Options(extra={"config": {"parameters": {"maxNewTokens": 9}}}), ValueError, "'maxNewTokens'"),
        (lambda: Options(extra={"fallbacks": [{"model": "m", "max_tokens": 9}]}), ValueError, "'max_tokens'"),
        (lambda: Options(extra={"num_retries": 5}), ValueError, "'num_retries', which budgets don't see"),
        (lambda: Options(extra=deep(17)), ValueError, "deeper than 16 levels"),
    ],
)
def test_what_no_model_could_use_is_refused(make, error, says):
    """Invalid tools are refused at construction."""
    with pytest.raises(error, match=says):
        make()


def deep(levels):
    return {"a": deep(levels - 1)} if levels else {}


def test_extra_takes_any_name_where_it_is_data():
    """Schemas, tools and metadata of the caller may name a property as they like, and one answer is one answer."""
    schema = {"properties": {"max_tokens": {"type": "integer"}, "n": {"type": "integer"}}}
    extra = {
        "response_format": {"json_schema": {"schema": schema}},
        "tools": [{"function": {"parameters": schema}}],
        "responseJsonSchema": schema,
        "metadata": {"n": 8},
        "n": 1,
        "reasoning": {"effort": "low"},
    }
    assert extra == Options(extra=extra).extra


def test_extra_is_not_changed_from_outside():
    """Neither at the top nor inside, where a budget could be passed by."""
    inner = {"a": [{"b": 1}]}
    options = Options(extra={"extra_body": inner})
    inner["max_tokens"] = 9
    inner["a"][0]["n"] = 9
    assert {"extra_body": {"a": [{"b": 1}]}} == options.extra


def test_options_are_overlaid_one_by_one():
    """Those that the other sets win, extra ones are merged, and all others stay."""
    below = Options(top_p=0.5, logprobs=True, tools=[search], extra={"a": 1, "b": 1})
    above = Options(top_p=0.0, logprobs=False, reasoning_effort="low", extra={"b": 2})
    both = below.overlaid(above)
    assert (0.0, False, "low", {"a": 1, "b": 2}) == (both.top_p, both.logprobs, both.reasoning_effort, both.extra)
    assert below.tools == both.tools


def google_style(city: str, days: int = 3):
    """
    Forecast the weather.

    Args:
        city: The city,
            with its country.
        days (int): How many.

    Returns:
        A text.
    """


def numpy_style(city: str, days: int = 3):
    """
    Forecast the weather.

    Parameters
    ----------
    city : str
        The city,
        with its country.
    days : int, optional
        How many.

    Returns
    -------
    str
        A text.
    """


def sphinx_style(city: str, days: int = 3):
    """
    Forecast the weather.

    :param city: The city,
        with its country.
    :param int days: How many.
    :returns: A text.
    """


def annotated(city: Annotated[str, "The city, with its country."], days: Annotated[int, "How many."] = 3):
    """Forecast the weather."""


@pytest.mark.parametrize("function", [google_style, numpy_style, sphinx_style, annotated])
def test_parameters_are_described_in_every_style(function):
    """The model reads each description beside its parameter, and the rest as that of the tool."""
    made = tool(function)
    assert "Forecast the weather." == made.description
    descriptions = {name: shape["description"] for name, shape in made.schema["properties"].items()}
    assert {"city": "The city, with its country.", "days": "How many."} == descriptions


class Forecast:
    def __call__(self, city: str) -> str:
        """Forecast the weather."""
        return f"rain in {city}"


def test_a_partial_is_a_tool_without_what_it_sets():
    """Arguments that a partial has set are not in the schema."""
    made = tool(partial(google_style, days=5))
    assert ("google_style", "Forecast the weather.") == (made.name, made.description)
    assert ["city"] == list(made.schema["properties"])
    with pytest.raises(ValueError, match="/days"):
        made.arguments_of(ToolCall("1", "google_style", '{"city": "Oslo", "days": 9}'))
    assert ["days"] == list(tool(partial(google_style, "Oslo")).schema["properties"])


def test_an_object_that_can_be_called_is_a_tool():
    """Its method has the description and the annotations."""
    made = tool(Forecast())
    assert ("Forecast", "Forecast the weather.") == (made.name, made.description)
    assert "rain in Oslo" == made(**made.arguments_of(ToolCall("1", "Forecast", '{"city": "Oslo"}')))


class Session:
    """An object with a tool, such as the connection of one request to a database."""

    def search(self, query: str) -> str:
        """Search."""
        return query

    def __call__(self, query: str) -> str:
        """Search."""
        return query


def closure_over(session):
    def search(query: str) -> str:
        """Search."""
        return session.search(query)

    return search


@pytest.mark.parametrize(
    "function_of",
    [
        pytest.param(lambda session: session.search, id="method"),
        pytest.param(lambda session: session, id="object"),
        pytest.param(closure_over, id="closure"),
        pytest.param(lambda session: partial(session.search), id="partial"),
    ],
)
def test_a_tool_that_is_gone_keeps_nothing_alive(function_of):
    """A service may make tools for every request: their objects are freed with them, and not kept in a cache."""
    session = Session()
    made = tool(function_of(session))
    assert {"query": "rain"} == made.arguments_of(ToolCall("1", made.name, '{"query": "rain"}'))
    gone = weakref.ref(session)
    del session, made
    gc.collect()
    assert gone() is None


def test_an_unhashable_object_is_a_tool():
    """A callable object that compares by value can't be a key of a cache, and is a tool all the same."""

    @attrs.define
    class Search:
        limit: int

        def __call__(self, query: str) -> str:
            """Search."""
            return query * self.limit

    made = tool(Search(2))
    assert {"query": "a"} == made.arguments_of(ToolCall("1", made.name, '{"query": "a"}'))
