"""Convert messages into the JSON of Anthropic's Messages API."""

from collections.abc import Iterable, Sequence

from sampling.backends._thoughts import thinking_block
from sampling.backends._tool_names import plain_id, wire_name
from sampling.backends.http._fields import Json
from sampling.errors import BadRequest, Unsupported
from sampling.messages import Message
from sampling.parts import Content, File, Image, Part, Reasoning, Text, ToolCall, ToolResult

__all__ = ["wire_messages", "wire_system"]

_SYSTEM = frozenset({"system", "developer"})
_IMAGE_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")


def wire_system(messages: Iterable[Message]) -> str | list[Json] | None:
    """Return the system prompt: a text, or blocks if there are several."""
    texts: list[str] = []
    for message in messages:
        if message.role not in _SYSTEM:
            continue
        parts = [message.content] if isinstance(message.content, str) else message.content
        for part in parts:
            text = part.text if isinstance(part, Text) else part
            if not isinstance(text, str):
                raise Unsupported(f"the Anthropic API accepts no {type(part).__name__} in a system prompt")
            if text.strip():
                texts.append(text)
    if len(texts) > 1:
        return [_text(text) for text in texts]
    return texts[0] if texts else None


def wire_messages(messages: Iterable[Message]) -> list[Json]:
    """Return the turns of a conversation. Tool results belong to the user, and consecutive messages are merged."""
    turns: list[tuple[str, list[Json]]] = []
    for message in messages:
        if message.role in _SYSTEM:
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message)
        if turns and turns[-1][0] == role:
            turns[-1][1].extend(blocks)
        elif blocks:
            # A message without any text, as of a model that said nothing, would be refused.
            turns.append((role, blocks))
    if not turns:
        raise BadRequest(
            "there is nothing to send: the request has no message with text, or system messages only",
            hint="Add a message of the user.",
        )
    return [{"role": role, "content": _shortest(blocks)} for role, blocks in turns]


def _shortest(blocks: list[Json]) -> str | list[Json]:
    return blocks[0]["text"] if len(blocks) == 1 and blocks[0].keys() == {"type", "text"} else blocks


def _blocks(message: Message) -> list[Json]:
    content = message.content
    if message.role == "tool":
        return _results(content)
    if isinstance(content, str):
        return [_text(content)] if content.strip() else []
    if message.role == "assistant":
        return [block for part in content if (block := _assistant_block(part)) is not None]
    return _user_blocks(content)


def _results(content: Content) -> list[Json]:
    if isinstance(content, str):
        raise BadRequest(
            "a message of role 'tool' can't be sent as text, because it needs the id of its call",
            hint='Use Message("tool", [ToolResult(id, content)]).',
        )
    return [_result(part) for part in content if isinstance(part, ToolResult)]


def _result(result: ToolResult) -> Json:
    content = result.content
    block: Json = {"type": "tool_result", "tool_use_id": plain_id(result.id)}
    if given := content if isinstance(content, str) else _user_blocks(content):
        block["content"] = given
    return {**block, "is_error": True} if result.is_error else block


def _assistant_block(part: Part) -> Json | None:
    if isinstance(part, Text):
        return _text(part.text) if part.text.strip() else None
    if isinstance(part, ToolCall):
        return {"type": "tool_use", "id": plain_id(part.id), "name": wire_name(part.name), "input": _input(part)}
    if isinstance(part, Reasoning):
        return thinking_block(part)
    raise Unsupported(f"the Anthropic API accepts no {type(part).__name__} in the message of an assistant")


def _input(call: ToolCall) -> Json:
    try:
        return call.parse()
    except ValueError:
        # The API takes objects only, and its documentation advises this for what is none.
        return {"INVALID_JSON": call.arguments}


def _user_blocks(content: Sequence[Part]) -> list[Json]:
    return [_user_block(part) for part in content if not (isinstance(part, Text) and not part.text.strip())]


def _user_block(part: Part) -> Json:
    if isinstance(part, Text):
        return _text(part.text)
    if isinstance(part, Image):
        return _image(part)
    if isinstance(part, File):
        return _document(part)
    raise Unsupported(f"the Anthropic API accepts no {type(part).__name__} in a message of the user")


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _image(part: Image) -> Json:
    if part.data is None:
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    if part.media_type not in _IMAGE_TYPES:
        raise Unsupported(f"the Anthropic API accepts images of {', '.join(_IMAGE_TYPES)}, got {part.media_type}")
    return {"type": "image", "source": _base64(part)}


def _base64(part: Image | File) -> Json:
    return {"type": "base64", "media_type": part.media_type, "data": part.base64()}


def _document(part: File) -> Json:
    title = {} if part.name is None else {"title": part.name}
    return {"type": "document", "source": _document_source(part), **title}


def _document_source(part: File) -> Json:
    if part.data is None:
        return {"type": "url", "url": part.url}
    if part.media_type == "application/pdf":
        return _base64(part)
    try:
        # Markdown, CSV or code is plain text to the API.
        return {"type": "text", "media_type": "text/plain", "data": part.data.decode()}
    except UnicodeDecodeError:
        raise Unsupported(
            f"the Anthropic API accepts a File of application/pdf or text in UTF-8, got {part.media_type}"
        ) from None
