"""`GeminiBackend` sends the same requests as Google's own SDK."""

import re
import warnings
from base64 import b64decode, b64encode

import anyio
import anyio.to_thread
import pytest

from sampling import Audio, File, Image, Message, Options, Request, Text, Tool, ToolCall, ToolResult
from sampling.backends.gemini import GeminiBackend
from sampling.parts import Reasoning
from sampling.testing.servers import HostileServer

with warnings.catch_warnings():
    # Its docstrings have escape sequences that Python warns about.
    warnings.simplefilter("ignore")
    from google import genai
    from google.genai import types

KEY = "test-key-0123456789"
PNG = b"\x89PNG\r\n\x1a\n0000"
WAV = b"RIFF0000WAVEfmt "
MP3 = b"ID3\x03"
PDF = b"%PDF-1.7\n"
SIGNATURE = b64encode(b"a signature").decode()
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = Tool("weather", "Tell the weather.", SCHEMA)
BODY = b'data: {"candidates":[{"content":{"parts":[{"text":"hi"}],"role":"model"},"finishReason":"STOP"}]}\n\n'
ANSWER = b"HTTP/1.1 200 .\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def camel(name):
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), name)


_OPAQUE = {"args", "response", "parametersJsonSchema", "responseJsonSchema"}
"""Fields whose keys are the caller's."""


def normalised(value):
    """
    Return JSON as the API reads it.

    The SDK writes some names with underscores, which mean the same, floats for integers, and things that say nothing:
    an empty generationConfig, and the role of a system instruction.
    """
    if isinstance(value, list):
        return [normalised(item) for item in value]
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if not isinstance(value, dict):
        return value
    fields = {}
    for name, item in value.items():
        new = camel(name)
        fields[new] = item if new in _OPAQUE else normalised(item)
    if fields.get("generationConfig") == {}:
        del fields["generationConfig"]
    if "systemInstruction" in fields:
        fields["systemInstruction"].pop("role", None)
    return fields


def one_tool():
    return [
        types.Tool(
            function_declarations=[
                types.FunctionDeclaration(
                    name="weather", description="Tell the weather.", parameters_json_schema=SCHEMA
                )
            ]
        )
    ]


def calling(mode, *names):
    config = types.FunctionCallingConfig(mode=mode, allowed_function_names=list(names) or None)
    return types.ToolConfig(function_calling_config=config)


def content(role, *parts):
    return types.Content(role=role, parts=list(parts))


HI = Message("user", "hi")
ASKED = Message("user", "Weather in Rome and Oslo?")
SDK_ASKED = content("user", types.Part(text="Weather in Rome and Oslo?"))
CALLS = Message(
    "assistant",
    [
        Reasoning("", f"call 0:{SIGNATURE}"),
        ToolCall("c1", "weather", '{"city": "Rome"}'),
        ToolCall("gemini_r1_1", "weather", '{"city": "Oslo"}'),
    ],
)
SDK_CALLS = content(
    "model",
    types.Part(
        function_call=types.FunctionCall(id="c1", name="weather", args={"city": "Rome"}),
        thought_signature=b64decode(SIGNATURE),
    ),
    types.Part(function_call=types.FunctionCall(name="weather", args={"city": "Oslo"})),
)
RESULTS = Message("tool", [ToolResult("c1", "sunny"), ToolResult("gemini_r1_1", "no such city", is_error=True)])
SDK_RESULTS = content(
    "user",
    types.Part(function_response=types.FunctionResponse(id="c1", name="weather", response={"output": "sunny"})),
    types.Part(function_response=types.FunctionResponse(name="weather", response={"error": "no such city"})),
)
SDK_MEDIA_RESULTS = content(
    "user",
    types.Part(
        function_response=types.FunctionResponse(
            id="c1",
            name="weather",
            response={"output": "see"},
            parts=[
                types.FunctionResponsePart(
                    inline_data=types.FunctionResponseBlob(mime_type="image/png", data=PNG),
                ),
                types.FunctionResponsePart(
                    file_data=types.FunctionResponseFileData(file_uri="gs://bucket/b.pdf", mime_type="application/pdf"),
                ),
            ],
        )
    ),
    types.Part(
        function_response=types.FunctionResponse(
            name="weather",
            response={"output": ""},
            parts=[
                types.FunctionResponsePart(inline_data=types.FunctionResponseBlob(mime_type="audio/wav", data=WAV)),
            ],
        )
    ),
)
SIGNED_TEXT = Message("assistant", [Reasoning("", f"text 6-6:{SIGNATURE}"), Text("Hello.")])

# messages, options, settings of the backend, contents of the SDK, configuration of the SDK
CALLS_BOTH_WAYS = {
    "plain": ([HI], {}, {}, "hi", {}),
    "system": (
        [Message("system", "Be brief."), HI, Message("assistant", "Hello."), Message("user", "Bye.")],
        {},
        {},
        [
            content("user", types.Part(text="hi")),
            content("model", types.Part(text="Hello.")),
            content("user", types.Part(text="Bye.")),
        ],
        {"system_instruction": "Be brief."},
    ),
    "sampling": (
        [HI],
        {
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 40,
            "max_tokens": 100,
            "stop": ["END"],
            "seed": 7,
            "presence_penalty": 0.25,
            "frequency_penalty": -0.5,
            "logprobs": 3,
        },
        {},
        "hi",
        {
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 40,
            "max_output_tokens": 100,
            "stop_sequences": ["END"],
            "seed": 7,
            "presence_penalty": 0.25,
            "frequency_penalty": -0.5,
            "response_logprobs": True,
            "logprobs": 3,
        },
    ),
    "media": (
        [
            Message(
                "user",
                [
                    Text("Compare"),
                    Image(PNG),
                    Audio(WAV),
                    File("https://example.com/a.pdf"),
                    Image("gs://bucket/b.png"),
                ],
            )
        ],
        {},
        {},
        [
            "Compare",
            types.Part.from_bytes(data=PNG, mime_type="image/png"),
            types.Part.from_bytes(data=WAV, mime_type="audio/wav"),
            types.Part.from_uri(file_uri="https://example.com/a.pdf", mime_type="application/pdf"),
            types.Part.from_uri(file_uri="gs://bucket/b.png", mime_type="image/png"),
        ],
        {},
    ),
    "files": (
        [Message("user", [Text("Sum up"), File(PDF, name="a.pdf"), File(b"a,b", "text/csv"), Audio(MP3)])],
        {},
        {},
        [
            "Sum up",
            types.Part.from_bytes(data=PDF, mime_type="application/pdf"),
            types.Part.from_bytes(data=b"a,b", mime_type="text/csv"),
            types.Part.from_bytes(data=MP3, mime_type="audio/mpeg"),
        ],
        {},
    ),
    "media in results": (
        [
            ASKED,
            CALLS,
            Message(
                "tool",
                [
                    ToolResult("c1", [Text("see"), Image(PNG), File("gs://bucket/b.pdf")]),
                    ToolResult("gemini_r1_1", [Audio(WAV)]),
                ],
            ),
        ],
        {},
        {},
        [SDK_ASKED, SDK_CALLS, SDK_MEDIA_RESULTS],
        {},
    ),
    "thoughts": (
        [HI, Message("assistant", [Reasoning("Hm.", f"thought:{SIGNATURE}"), Text("Hello.")]), Message("user", "Bye.")],
        {},
        {},
        [
            content("user", types.Part(text="hi")),
            content(
                "model",
                types.Part(text="Hm.", thought=True, thought_signature=b64decode(SIGNATURE)),
                types.Part(text="Hello."),
            ),
            content("user", types.Part(text="Bye.")),
        ],
        {},
    ),
    "cached": (
        [HI],
        {"extra": {"cachedContent": "cachedContents/abc"}},
        {},
        "hi",
        {"cached_content": "cachedContents/abc"},
    ),
    "tools": ([ASKED], {"tools": [WEATHER]}, {}, [SDK_ASKED], {"tools": one_tool()}),
    "required tool": (
        [ASKED],
        {"tools": [WEATHER], "tool_choice": "required"},
        {},
        [SDK_ASKED],
        {"tools": one_tool(), "tool_config": calling("ANY")},
    ),
    "named tool": (
        [ASKED],
        {"tools": [WEATHER], "tool_choice": "weather"},
        {},
        [SDK_ASKED],
        {"tools": one_tool(), "tool_config": calling("ANY", "weather")},
    ),
    "no tool": (
        [ASKED],
        {"tools": [WEATHER], "tool_choice": "none"},
        {},
        [SDK_ASKED],
        {"tools": one_tool(), "tool_config": calling("NONE")},
    ),
    "tool results": (
        [ASKED, CALLS, RESULTS],
        {"tools": [WEATHER], "tool_choice": "auto"},
        {},
        [SDK_ASKED, SDK_CALLS, SDK_RESULTS],
        {"tools": one_tool(), "tool_config": calling("AUTO")},
    ),
    "signed text": (
        [HI, SIGNED_TEXT, Message("user", "Bye.")],
        {},
        {},
        [
            content("user", types.Part(text="hi")),
            content("model", types.Part(text="Hello."), types.Part(text="", thought_signature=b64decode(SIGNATURE))),
            content("user", types.Part(text="Bye.")),
        ],
        {},
    ),
    "thinking level": (
        [HI],
        {"model": "gemini-3-pro-preview", "reasoning_effort": "low"},
        {"include_thoughts": True},
        "hi",
        {"thinking_config": types.ThinkingConfig(thinking_level="LOW", include_thoughts=True)},
    ),
    "thinking budget": (
        [HI],
        {"reasoning_effort": "medium"},
        {},
        "hi",
        {"thinking_config": types.ThinkingConfig(thinking_budget=8_192)},
    ),
    "schema": (
        [HI],
        {"schema": SCHEMA},
        {},
        "hi",
        {"response_mime_type": "application/json", "response_json_schema": SCHEMA},
    ),
    "safety settings": (
        [HI],
        {"extra": {"safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]}},
        {},
        "hi",
        {"safety_settings": [types.SafetySetting(category="HARM_CATEGORY_HARASSMENT", threshold="BLOCK_NONE")]},
    ),
}


async def our_request(messages, options, settings):
    async with HostileServer([ANSWER]) as server:
        async with GeminiBackend("gemini-2.5-flash", KEY, base_url=root(server), **settings) as backend:
            await backend.generate(Request(tuple(messages), Options(**options)))
        return server.requests[0]


async def sdk_request(model, contents, config):
    async with HostileServer([ANSWER]) as server:
        # In a thread, because the asynchronous client is for asyncio only.
        await anyio.to_thread.run_sync(ask_sdk, root(server), model, contents, config)
        return server.requests[0]


def root(server):
    return f"http://127.0.0.1:{server.port}"


def ask_sdk(url, model, contents, config):
    options = types.HttpOptions(base_url=url, api_version="v1beta")
    with genai.Client(api_key=KEY, http_options=options) as client:
        configuration = types.GenerateContentConfig(**config) if config else None
        for _ in client.models.generate_content_stream(model=model, contents=contents, config=configuration):
            pass


@pytest.mark.parametrize("name", CALLS_BOTH_WAYS)
async def test_the_request_is_the_one_of_googles_sdk(name):
    """Path, key and body are the same, field by field."""
    messages, options, settings, contents, config = CALLS_BOTH_WAYS[name]
    mine = await our_request(messages, options, settings)
    its = await sdk_request(options.get("model", "gemini-2.5-flash"), contents, config)
    assert mine.path == its.path
    assert KEY == mine.headers["x-goog-api-key"] == its.headers["x-goog-api-key"]
    assert mine.headers["content-type"] == its.headers["content-type"]
    assert normalised(its.json()) == normalised(mine.json())
