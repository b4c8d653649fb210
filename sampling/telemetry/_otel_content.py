"""Convert messages to the JSON of OpenTelemetry's conventions."""

import json
from collections.abc import Iterable
from typing import Any

from sampling.messages import Generation, Message
from sampling.parts import Audio, Content, Image, Media, Part, Reasoning, Text, ToolCall, ToolResult

__all__ = ["input_messages", "output_messages", "tool_result"]

_LARGE_BYTES = 64 * 1024
"""Media with more bytes than this are described by their digest: a span has no room for them."""


def input_messages(messages: Iterable[Message]) -> str:
    """Return the value of `gen_ai.input.messages`."""
    return json.dumps([{"role": one.role, "parts": _parts(one.content)} for one in messages])


def output_messages(generation: Generation) -> str:
    """Return the value of `gen_ai.output.messages`."""
    parts = _parts(generation.message.content)
    if generation.reasoning and not any(part["type"] == "reasoning" for part in parts):
        parts.insert(0, {"type": "reasoning", "content": generation.reasoning})
    ended = "tool_call" if generation.finish_reason == "tool_calls" else generation.finish_reason
    return json.dumps([{"role": "assistant", "parts": parts, "finish_reason": ended}])


def tool_result(result: ToolResult) -> str:
    """Return the value of `gen_ai.tool.call.result`."""
    return result.content if isinstance(result.content, str) else json.dumps(_parts(result.content))


def _parts(content: Content) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "content": content}]
    return [_part(part) for part in content]


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "content": part.text}
    if isinstance(part, Reasoning):
        return {"type": "reasoning", "content": part.text}
    if isinstance(part, ToolCall):
        return {"type": "tool_call", "id": part.id, "name": part.name, "arguments": part.arguments}
    if isinstance(part, ToolResult):
        response = part.content if isinstance(part.content, str) else _parts(part.content)
        return {"type": "tool_call_response", "id": part.id, "response": response}
    return _media(part)


def _media(part: Media) -> dict[str, Any]:
    modality = "image" if isinstance(part, Image) else "audio" if isinstance(part, Audio) else "document"
    record: dict[str, Any] = {"modality": modality, "mime_type": part.media_type}
    if part.url is not None:
        return {"type": "uri", **record, "uri": part.url}
    if part.data is not None and len(part.data) > _LARGE_BYTES:
        return {"type": "file", **record, "file_id": f"sha256:{part.digest}"}
    return {"type": "blob", **record, "content": part.base64()}
