"""Convert messages and tools into the JSON of the OpenAI API."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from sampling.backends._thoughts import wire_reasoning
from sampling.backends._tool_names import short_id, wire_name
from sampling.errors import Unsupported
from sampling.messages import Message
from sampling.parts import Audio, Content, File, Image, Part, Text, ToolCall, ToolResult
from sampling.tools import Tool

__all__ = ["wire_messages", "wire_tool_choice", "wire_tools"]

Json: TypeAlias = dict[str, Any]

_AUDIO_FORMATS = {"audio/wav": "wav", "audio/mpeg": "mp3"}


def wire_messages(messages: Iterable[Message]) -> list[Json]:
    """Return messages in the format of the chat API. Each tool result becomes a separate message."""
    wire: list[Json] = []
    for message in messages:
        content = message.content
        if isinstance(content, str):
            wire.append({"role": message.role, "content": content})
        elif message.role == "tool":
            wire.extend(_tool_message(part) for part in content if isinstance(part, ToolResult))
        elif message.role == "assistant":
            wire.append(_assistant_message(content))
        else:
            wire.append({"role": message.role, "content": [_block(part) for part in content]})
    return wire


def _tool_message(result: ToolResult) -> Json:
    content = _text_only(result.content, "a tool result")
    return {"role": "tool", "tool_call_id": short_id(result.id), "content": content}


def _assistant_message(content: Sequence[Part]) -> Json:
    calls = [_call(part) for part in content if isinstance(part, ToolCall)]
    text = _text_only([part for part in content if isinstance(part, Text | Image | Audio | File)], "an assistant")
    reasoning = wire_reasoning(content)
    if not calls:
        return {"role": "assistant", "content": text, **reasoning}
    return {"role": "assistant", "content": text or None, **reasoning, "tool_calls": calls}


def _call(call: ToolCall) -> Json:
    # Servers parse the arguments of earlier turns, and some fail if there are none.
    function = {"name": wire_name(call.name), "arguments": call.arguments or "{}"}
    return {"id": short_id(call.id), "type": "function", "function": function}


def _text_only(content: Content, place: str) -> str:
    if isinstance(content, str):
        return content
    for part in content:
        if not isinstance(part, Text):
            raise Unsupported(f"the OpenAI chat API accepts no {type(part).__name__} in the message of {place}")
    return "".join([part.text for part in content if isinstance(part, Text)])


def _block(part: Part) -> Json:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Image):
        return {"type": "image_url", "image_url": {"url": part.data_url()}}
    if isinstance(part, Audio):
        return _audio(part)
    if isinstance(part, File):
        return _file(part)
    raise Unsupported(f"the OpenAI chat API accepts no {type(part).__name__} in a message of the user")


def _audio(part: Audio) -> Json:
    encoding = _AUDIO_FORMATS.get(part.media_type or "")
    if part.data is None or encoding is None:
        given = "a URL" if part.data is None else part.media_type
        raise Unsupported(f"the OpenAI chat API accepts Audio as bytes of {' or '.join(_AUDIO_FORMATS)}, got {given}")
    return {"type": "input_audio", "input_audio": {"data": part.base64(), "format": encoding}}


def _file(part: File) -> Json:
    if part.data is None:
        raise Unsupported("the OpenAI chat API accepts a File as bytes, got a URL", hint="Download it first.")
    return {"type": "file", "file": {"filename": part.name or "file", "file_data": part.data_url()}}


def wire_tools(tools: Iterable[Tool]) -> list[Json]:
    """Return tools in the format of the chat API."""
    return [
        {
            "type": "function",
            "function": {"name": one.name, "description": one.description, "parameters": dict(one.schema)},
        }
        for one in tools
    ]


def wire_tool_choice(choice: str | None) -> Any:
    """Return the tool choice in the format of the chat API: a word, or the tool to call."""
    if choice in {None, "auto", "none", "required"}:
        return choice
    return {"type": "function", "function": {"name": choice}}
