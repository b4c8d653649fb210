"""Convert messages and tools into the JSON of the OpenAI API."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from sampling.backends._thoughts import thinking_chunks, wire_reasoning
from sampling.backends._tool_names import wire_name
from sampling.backends.openai._dialects import COMPATIBLE, Dialect
from sampling.errors import Unsupported
from sampling.messages import Message
from sampling.parts import Audio, Content, File, Image, Part, Text, ToolCall, ToolResult
from sampling.tools import Tool

__all__ = ["wire_messages", "wire_tool_choice", "wire_tools"]

Json: TypeAlias = dict[str, Any]


def wire_messages(messages: Iterable[Message], dialect: Dialect = COMPATIBLE) -> list[Json]:
    """Return messages in the format of the chat API. Each tool result becomes a separate message."""
    wire: list[Json] = []
    for message in messages:
        content, role = message.content, dialect.roles.get(message.role, message.role)
        if isinstance(content, str):
            wire.append({"role": role, "content": content})
        elif message.role == "tool":
            wire.extend(_tool_message(part, dialect) for part in content if isinstance(part, ToolResult))
        elif message.role == "assistant":
            wire.append(_assistant_message(content, dialect))
        else:
            wire.append({"role": role, "content": [_block(part, dialect) for part in content]})
    return wire


def _tool_message(result: ToolResult, dialect: Dialect) -> Json:
    return {
        "role": "tool",
        "tool_call_id": dialect.call_id(result.id),
        "content": _result_content(result.content, dialect),
    }


def _result_content(content: Content, dialect: Dialect) -> str | list[Json]:
    if dialect.has_parts_in_results and not isinstance(content, str):
        return [_block(part, dialect) for part in content]
    return _text_only(content, "a tool result")


def _assistant_message(content: Sequence[Part], dialect: Dialect) -> Json:
    calls = [_call(part, dialect) for part in content if isinstance(part, ToolCall)]
    text = _text_only([part for part in content if isinstance(part, Text | Image | Audio | File)], "an assistant")
    reasoning = wire_reasoning(content) if dialect.reasoning == "all" else {}
    chunks = [] if dialect.reasoning == "none" else thinking_chunks(content)
    if chunks:
        said: Any = [*chunks, *([{"type": "text", "text": text}] if text else [])]
    else:
        said = text if text or not calls else None
    return {"role": "assistant", "content": said, **reasoning, **({"tool_calls": calls} if calls else {})}


def _call(call: ToolCall, dialect: Dialect) -> Json:
    # Servers parse the arguments of earlier turns, and some fail if there are none.
    function = {"name": wire_name(call.name), "arguments": call.arguments or "{}"}
    return {"id": dialect.call_id(call.id), "type": "function", "function": function}


def _text_only(content: Content, place: str) -> str:
    if isinstance(content, str):
        return content
    for part in content:
        if not isinstance(part, Text):
            raise Unsupported(f"the OpenAI chat API accepts no {type(part).__name__} in the message of {place}")
    return "".join([part.text for part in content if isinstance(part, Text)])


def _block(part: Part, dialect: Dialect) -> Json:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Image):
        return {"type": "image_url", "image_url": {"url": part.data_url()}}
    if isinstance(part, Audio):
        return dialect.audio(part)
    if isinstance(part, File):
        return dialect.file(part)
    raise Unsupported(f"the OpenAI chat API accepts no {type(part).__name__} in a message of the user")


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
