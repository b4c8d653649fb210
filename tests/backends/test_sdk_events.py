"""Every event, block and part that the official SDKs know is read or skipped, and the text is right."""

import json
import warnings
from enum import Enum
from types import UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

import pytest
from anthropic.types import ContentBlock, RawContentBlockDelta
from anthropic.types.beta import BetaContentBlock, BetaRawContentBlockDelta
from openai.types.responses import ResponseOutputItem, ResponseStreamEvent
from pydantic import BaseModel

from sampling._redaction import Redactor
from sampling.backends.anthropic._answer import StreamedMessage
from sampling.backends.gemini._answer import StreamedGeminiAnswer
from sampling.backends.openai._responses_answer import StreamedResponsesAnswer

with warnings.catch_warnings():
    # Its docstrings have escape sequences that Python warns about.
    warnings.simplefilter("ignore")
    from google.genai.types import Candidate, GenerateContentResponse
    from google.genai.types import Part as GeminiPart

PLAIN = {str: "other", int: 1, float: 1.0, bool: True, bytes: "YQ=="}
DEEPEST = 5


def example(shape, depth=0):
    """Return an example of a type, as JSON."""
    origin, arguments = get_origin(shape), get_args(shape)
    if origin is Annotated:
        return example(arguments[0], depth)
    if origin is Literal:
        return arguments[0]
    if origin in {Union, UnionType}:
        return example(next(one for one in arguments if one is not type(None)), depth)
    if origin is list:
        return [example(arguments[0], depth + 1)] if depth < DEEPEST else []
    return {"key": "other"} if origin is dict else example_of_class(shape, depth)


def example_of_class(shape, depth):
    if isinstance(shape, type) and issubclass(shape, BaseModel):
        fields = [(field.alias or name, field) for name, field in shape.model_fields.items()]
        return {
            name: example(field.annotation, depth + 1)
            for name, field in fields
            if field.is_required() or depth < DEEPEST
        }
    if isinstance(shape, type) and issubclass(shape, Enum):
        return next(iter(shape)).value
    return PLAIN.get(shape, {"key": "other"})


def members(union):
    return get_args(get_args(union)[0])


def read(answer, *events):
    streamed = "".join([answer.add(json.dumps(event)) for event in events])
    generation = answer.generation()
    assert streamed == generation.text
    return generation


# These events are what an answer is made of, or the end of it.
READ = {"ResponseTextDeltaEvent", "ResponseErrorEvent", "ResponseFunctionCallArgumentsDeltaEvent"}
MESSAGE = {"type": "message", "id": "m", "role": "assistant", "content": [], "status": "in_progress"}


def read_response(*events):
    return read(
        StreamedResponsesAnswer(Redactor()),
        {"type": "response.created", "response": {"status": "in_progress", "model": "m"}},
        {"type": "response.output_item.added", "output_index": 0, "item": MESSAGE},
        {"type": "response.output_text.delta", "output_index": 0, "delta": "Hello"},
        *events,
        {"type": "response.completed", "response": {"status": "completed", "model": "m", "output": []}},
    )


@pytest.mark.parametrize("event", [one for one in members(ResponseStreamEvent) if one.__name__ not in READ])
def test_events_of_the_responses_api(event):
    """Those of server tools, images, audio and code are no text."""
    assert "Hello" == read_response({**example(event), "output_index": 3}).text


@pytest.mark.parametrize("item", members(ResponseOutputItem))
def test_items_of_the_responses_api(item):
    """Only a function call is a call for the application."""
    given = example(item, 1)
    added = {"type": "response.output_item.added", "output_index": 3, "item": given}
    generation = read_response(added, {**added, "type": "response.output_item.done"})
    assert ("Hello", given["type"] == "function_call") == (generation.text, bool(generation.tool_calls))


BLOCKS = [*members(ContentBlock), *members(BetaContentBlock)]
DELTAS = [*members(RawContentBlockDelta), *members(BetaRawContentBlockDelta)]
BEGUN = {"id": "m", "type": "message", "role": "assistant", "model": "c", "content": []}


@pytest.mark.parametrize("block", [one for one in BLOCKS if "text" != example(one)["type"]])
def test_blocks_of_the_messages_api(block):
    """With every kind of delta. Results of server tools are no text, and their calls are not the application's."""
    given = example(block)
    for delta in DELTAS:
        generation = read(
            StreamedMessage(Redactor()),
            {"type": "message_start", "message": BEGUN},
            {"type": "content_block_start", "index": 0, "content_block": given},
            {"type": "content_block_delta", "index": 0, "delta": example(delta)},
            {"type": "content_block_stop", "index": 0},
            {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": "Hel"}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "lo"}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "citations_delta", "citation": {}}},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}},
            {"type": "message_stop"},
        )
        assert ("Hello", given["type"] == "tool_use") == (generation.text, bool(generation.tool_calls))


def fields(model, *but):
    return [(one.alias or name, one) for name, one in model.model_fields.items() if name not in but]


@pytest.mark.parametrize(("name", "field"), fields(GeminiPart, "text", "thought", "function_call"))
def test_parts_of_gemini(name, field):
    """Code that it ran and images are no text."""
    part = {name: example(field.annotation, 2)}
    chunks = [{"content": {"parts": [part]}}, {"content": {"parts": [{"text": "Hello"}]}, "finishReason": "STOP"}]
    assert "Hello" == read(StreamedGeminiAnswer(Redactor()), *[{"candidates": [one]} for one in chunks]).text


@pytest.mark.parametrize(
    ("place", "name", "field"),
    [
        *[(0, *one) for one in fields(GenerateContentResponse, "candidates", "prompt_feedback")],
        *[(1, *one) for one in fields(Candidate, "content", "index", "finish_reason")],
    ],
)
def test_fields_of_gemini(place, name, field):
    """Sources, ratings and the like come beside the text."""
    candidate = {"content": {"parts": [{"text": "Hello"}]}, "finishReason": "STOP"}
    chunk = {"candidates": [candidate]}
    (chunk, candidate)[place][name] = example(field.annotation, 2)
    assert "Hello" == read(StreamedGeminiAnswer(Redactor()), chunk).text
