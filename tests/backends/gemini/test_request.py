"""Options, tools and schemas as the Gemini API takes them."""

import json
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from sampling import Action, Message, Options, RejectionSamplingStrategy, Request, Tool
from sampling._json.schemas import reduced_schema
from sampling.backends.gemini import GeminiBackend
from sampling.backends.gemini._request import gemini_body, model_path
from sampling.backends.gemini._thinking import can_think, thinking_config
from sampling.errors import BadRequest, RequestTooLarge, Unsupported
from sampling.testing.servers import GeminiServer, HostileServer, Reply

HI = (Message("user", "hi"),)
RIVER = {"type": "object", "properties": {"river": {"type": "string"}}, "required": ["river"], "title": "River"}
NOTE = Tool("note", "Take a note.", {"type": "object", "properties": {}})


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def body(structured="native", model="gemini-2.5-flash", include_thoughts=False, **options):
    return gemini_body(Request(HI, Options(**options)), model, structured, include_thoughts=include_thoughts)


def test_nothing_is_sent_that_nobody_asked_for():
    """A plain question is its contents alone."""
    assert ["contents"] == list(body())


@pytest.mark.parametrize(
    ("logprobs", "expected"),
    [
        (True, {"responseLogprobs": True}),
        (0, {"responseLogprobs": True, "logprobs": 0}),
        (5, {"responseLogprobs": True, "logprobs": 5}),
        (False, None),
    ],
)
def test_logprobs_with_and_without_alternatives(logprobs, expected):
    """Gemini has a flag and a number."""
    assert expected == body(logprobs=logprobs).get("generationConfig")


class TestThinking:
    @pytest.mark.parametrize(
        ("effort", "budget", "level"),
        [
            ("none", 0, None),
            ("minimal", 1_024, "MINIMAL"),
            ("low", 1_024, "LOW"),
            ("medium", 8_192, "MEDIUM"),
            ("high", 24_576, "HIGH"),
            ("xhigh", None, None),
            ("max", None, None),
        ],
    )
    def test_an_effort_is_a_budget_or_a_level(self, effort, budget, level):
        """Gemini 2.5 counts tokens, Gemini 3 has levels. What neither has is known before anything is sent."""
        for model, name, value in (
            ("gemini-2.5-pro", "thinkingBudget", budget),
            ("gemini-3-pro-preview", "thinkingLevel", level),
        ):
            assert (value is not None) is can_think(model, effort)
            if value is not None:
                assert {name: value} == thinking_config(model, effort, include_thoughts=False)

    def test_summaries_can_be_requested_alone(self):
        """`include_thoughts` leaves the effort to the model."""
        assert {"thinkingConfig": {"includeThoughts": True}} == body(include_thoughts=True)["generationConfig"]

    async def test_an_effort_that_the_model_does_not_have_is_unsupported(self):
        """It names the model, and nothing is sent."""
        request = Request(HI, Options(reasoning_effort="none", model="gemini-3-pro-preview"))
        async with GeminiServer() as server, GeminiBackend("m", base_url=server.url) as backend:
            with pytest.raises(Unsupported, match=r"Options.reasoning_effort 'none' for gemini-3-pro-preview"):
                await backend.generate(request)
        assert [] == server.requests

    async def test_it_is_dropped_if_the_caller_says_so(self):
        """As an option that the API does not have at all."""
        request = Request(HI, Options(reasoning_effort="max", min_p=0.1, temperature=0.5))
        async with (
            GeminiServer() as server,
            GeminiBackend("gemini-2.5-flash", base_url=server.url, drop_unsupported=True) as backend,
        ):
            await backend.generate(request)
        assert {"temperature": 0.5} == server.requests[0].json()["generationConfig"]


@pytest.mark.parametrize("option", [{"min_p": 0.1}, {"logit_bias": {1: 2}}])
async def test_options_that_the_api_does_not_have_are_unsupported(option):
    """Nothing is sent."""
    async with GeminiServer() as server, GeminiBackend("m", base_url=server.url) as backend:
        with pytest.raises(Unsupported, match=f"the Gemini API does not support Options.{next(iter(option))}"):
            await backend.generate(Request(HI, Options(**option)))
    assert [] == server.requests


class TestExtra:
    def test_objects_and_tools_are_added_to_ours(self):
        """A search beside functions, and a resolution beside a temperature."""
        sent = body(
            temperature=0,
            tools=[NOTE],
            tool_choice="auto",
            extra={
                "generationConfig": {"mediaResolution": "LOW"},
                "tools": [{"googleSearch": {}}],
                "toolConfig": {"retrievalConfig": {}},
                "cachedContent": "cachedContents/x",
            },
        )
        assert {"temperature": 0, "mediaResolution": "LOW"} == sent["generationConfig"]
        assert ["functionDeclarations", "googleSearch"] == [next(iter(tool)) for tool in sent["tools"]]
        assert {"functionCallingConfig", "retrievalConfig"} == set(sent["toolConfig"])
        assert "cachedContents/x" == sent["cachedContent"]

    @pytest.mark.parametrize("name", ["contents", "systemInstruction", "system_instruction"])
    def test_the_messages_are_not_replaced(self, name):
        """They come from the request."""
        with pytest.raises(BadRequest, match=name):
            body(extra={name: []})

    def test_a_configuration_that_is_no_mapping_is_a_type_error(self):
        """The message names it."""
        with pytest.raises(TypeError, match="generationConfig"):
            body(extra={"generationConfig": [1]})

    def test_tokens_are_not_smuggled_past_a_budget(self):
        """`extra` can set neither the limit of tokens nor the number of candidates."""
        for config in ({"maxOutputTokens": 10**6}, {"candidateCount": 8}):
            with pytest.raises(ValueError, match="budgets don't see"):
                Options(extra={"generationConfig": config})


class TestTools:
    def test_a_choice_without_tools_is_a_bad_request(self):
        """A tool choice without tools is a bad request, except for "none"."""
        with pytest.raises(BadRequest, match=r"no options\.tools"):
            body(tool_choice="required")
        assert ["contents"] == list(body(tool_choice="none"))

    def test_schemas_of_tools_have_known_keywords_only(self):
        """Keywords that the API does not support are described in words."""
        schema = {"type": "object", "properties": {"a": {"type": "integer", "exclusiveMinimum": 3, "default": 5}}}
        sent = body(tools=[Tool("f", "Do it.", schema)])["tools"][0]["functionDeclarations"][0]
        assert {"type": "integer", "description": "exclusiveMinimum: 3"} == sent["parametersJsonSchema"]["properties"][
            "a"
        ]


class Node(BaseModel):
    """Recursive, with all that the API does not know."""

    kind: Literal["node"]
    name: Annotated[str, Field(max_length=3, pattern="^a")]
    pair: tuple[int, str]
    child: "Node | None" = Field(default=None, description="the next one")


class TestSchemas:
    def test_only_keywords_of_the_api_are_sent(self):
        """https://ai.google.dev/api/generate-content#FIELDS.response_json_schema"""
        sent = body(schema=Node)["generationConfig"]["responseJsonSchema"]
        known = (
            "$id $defs $ref $anchor type format title description enum items prefixItems minItems maxItems minimum "
            "maximum anyOf oneOf properties additionalProperties required propertyOrdering"
        )
        allowed = set(known.split())

        def walk(node):
            assert node.keys() <= allowed, node
            assert "$ref" not in node or node.keys() <= {"$ref", "$defs"}, node
            for inner in [*node.get("properties", {}).values(), *node.get("$defs", {}).values()]:
                walk(inner)
            for inner in [*node.get("anyOf", []), *node.get("prefixItems", [])]:
                walk(inner)

        walk(sent)
        assert ["node"] == sent["properties"]["kind"]["enum"]
        assert "pattern: ^a" in sent["properties"]["name"]["description"]
        # The API wants recursion to be optional, unlike OpenAI's strict mode.
        assert "child" not in sent["required"]

    def test_a_schema_of_known_keywords_is_sent_as_it_is(self):
        """A schema with supported keywords is sent unchanged."""
        assert RIVER == body(schema=RIVER)["generationConfig"]["responseJsonSchema"]

    def test_the_given_schema_is_not_changed(self):
        """The caller's schema may be shared, so it is not changed."""
        given = {"type": "string", "const": "x", "minLength": 1}
        assert {"type": "string", "enum": ["x"], "description": "minLength: 1"} == reduced_schema(
            given, {"type", "enum", "description"}
        )
        assert {"type": "string", "const": "x", "minLength": 1} == given

    async def test_a_typed_action_gets_its_value_in_every_mode(self):
        """Native, tool and prompt mode all give the typed value."""
        for mode, reply in (
            ("native", {"text": '{"river": "Rhine"}'}),
            ("tool", {"functionCall": {"name": "River", "args": {"river": "Rhine"}}}),
            ("prompt", {"text": 'Sure:\n```json\n{"river": "Rhine"}\n```'}),
        ):
            value, sent = await typed_answer(mode, reply)
            assert {"river": "Rhine"} == value.model_dump()
            last = sent["contents"][-1]["parts"][-1]["text"]
            assert ("responseJsonSchema" in sent.get("generationConfig", {})) is (mode == "native")
            assert ("tools" in sent) is (mode == "tool")
            assert ('"river"' in last) is (mode == "prompt")
            if mode == "tool":
                assert {"mode": "ANY"} == sent["toolConfig"]["functionCallingConfig"]

    def test_the_answer_is_one_of_the_tools(self):
        """Beside others, and the choice of the caller is kept."""
        sent = body("tool", schema=RIVER, tools=[NOTE], tool_choice="auto")
        assert ["note", "River"] == [one["name"] for one in sent["tools"][0]["functionDeclarations"]]
        assert {"mode": "AUTO"} == sent["toolConfig"]["functionCallingConfig"]


class River(BaseModel):
    river: str


async def typed_answer(mode, part):
    chunk = {"candidates": [{"content": {"parts": [part], "role": "model"}, "finishReason": "STOP"}]}
    data = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    head = b"HTTP/1.1 200 .\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(data)
    async with HostileServer([head + data]) as server:
        url = f"http://127.0.0.1:{server.port}"
        async with GeminiBackend("gemini-2.5-flash", base_url=url, structured=mode) as backend:
            result = await RejectionSamplingStrategy().sample(Action("Name a river.", River), None, backend)
    assert result.success, result.explain()
    return result.value, server.requests[0].json()


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("gemini-2.5-flash", "models/gemini-2.5-flash"),
        ("models/gemini-2.5-flash", "models/gemini-2.5-flash"),
        ("tunedModels/mine", "tunedModels/mine"),
    ],
)
def test_a_model_has_a_path(model, path):
    """Tuned models have another path than others."""
    assert path == model_path(model)


@pytest.mark.parametrize("model", ["../x", "models/..", "a//b", "/x", "models/"])
def test_a_model_that_leads_elsewhere_is_a_bad_request(model):
    """Its name may come from others."""
    with pytest.raises(BadRequest, match="not the name of a model"):
        model_path(model)


async def test_odd_names_of_models_stay_in_the_path():
    """A question mark would begin the query."""
    async with GeminiServer() as server, GeminiBackend("a?b#c:d e", base_url=server.url) as backend:
        await backend.generate(Request(HI))
    assert "/v1beta/models/a%3Fb%23c%3Ad%20e:streamGenerateContent?alt=sse" == server.requests[0].path


@pytest.mark.parametrize(
    ("options", "settings", "kind", "message"),
    [
        ({"schema": {"enum": {1, 2}}}, {}, BadRequest, "is not JSON"),
        ({"schema": 3}, {}, TypeError, "options.schema"),
        ({"extra": {"x": float("nan")}}, {}, BadRequest, "is not JSON"),
        ({"extra": {"x": "\ud800"}}, {}, BadRequest, "surrogate"),
        ({"extra": {"x": "y" * 1_000}}, {"max_request_bytes": 500}, RequestTooLarge, "max_request_bytes"),
    ],
)
async def test_what_can_not_be_sent_is_one_clear_error(options, settings, kind, message):
    """Nothing is sent."""
    async with GeminiServer(Reply()) as server, GeminiBackend("m", base_url=server.url, **settings) as backend:
        with pytest.raises(kind, match=message):
            await backend.generate(Request(HI, Options(**options)))
    assert [] == server.requests
