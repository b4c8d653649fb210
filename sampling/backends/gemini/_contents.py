"""Convert messages into the contents of the Gemini API."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import attrs

from sampling.backends._tool_names import wire_name
from sampling.backends.gemini._signatures import SKIP_VALIDATION, SignedPlace, is_own, signed_texts, split_signature
from sampling.errors import BadRequest, Unsupported
from sampling.messages import Message
from sampling.parts import Content, Media, Part, Reasoning, Text, ToolCall, ToolResult

__all__ = ["MADE_UP_ID", "is_newer_than_2", "wire_contents"]

Json: TypeAlias = dict[str, Any]

MADE_UP_ID = "gemini_"
"""The prefix of ids that Gemini did not send. They are not sent back."""

_OLD_MODEL = re.compile(r"(?:.*/)?(?:gemini-[12]\b|gemini-(?:pro|ultra)(?:-vision)?$|gemma-|learnlm-)")


def is_newer_than_2(model: str) -> bool:
    """Return whether a model is Gemini 3 or later, judging by its name."""
    return _OLD_MODEL.match(model) is None


@attrs.define
class _Conversation:
    """The contents so far, and the tool calls that wait for results."""

    needs_signatures: bool
    system: list[Json] = attrs.field(factory=list[Json])
    contents: list[Json] = attrs.field(factory=list[Json])
    calls: dict[str, ToolCall] = attrs.field(factory=dict[str, ToolCall])
    is_answering: bool = False
    """True if the last content has results of tools. The API expects those of one turn in one content."""

    def add(self, message: Message) -> None:
        if message.role in {"system", "developer"}:
            self.system.extend(_text_parts(message.content))
            return
        if message.role == "assistant":
            self._add_content("model", self._answer(message.content))
            return
        results = [] if isinstance(message.content, str) else [p for p in message.content if isinstance(p, ToolResult)]
        if results:
            self._add_results(results)
        else:
            self._add_content("user", _parts(message.content))

    def _add_content(self, role: str, parts: list[Json]) -> None:
        self.contents.append({"role": role, "parts": parts})
        self.is_answering = False

    def _answer(self, content: Content) -> list[Json]:
        if isinstance(content, str):
            return [{"text": content}]
        calls = [part for part in content if isinstance(part, ToolCall)]
        self.calls = {call.id: call for call in calls} or self.calls
        # The API refuses a content without parts.
        return _answer_parts(content, calls, needs_signatures=self.needs_signatures) or [{"text": ""}]

    def _add_results(self, results: Sequence[ToolResult]) -> None:
        if not self.is_answering:
            self._add_content("user", [])
            self.is_answering = True
        # Without ids, only the order tells which call of a tool a result belongs to.
        order = {call_id: number for number, call_id in enumerate(self.calls)}
        parts = [_result(result, self.calls) for result in sorted(results, key=lambda one: order.get(one.id, 0))]
        self.contents[-1]["parts"].extend(parts)


def wire_contents(messages: Iterable[Message], model: str) -> Json:
    """Return the fields of the request for the messages: `contents`, and `systemInstruction` if there is one."""
    conversation = _Conversation(needs_signatures=is_newer_than_2(model))
    for message in messages:
        conversation.add(message)
    system = {"systemInstruction": {"parts": conversation.system}} if conversation.system else {}
    return {**system, "contents": conversation.contents}


def _text_parts(content: Content) -> list[Json]:
    if isinstance(content, str):
        return [{"text": content}]
    for part in content:
        if not isinstance(part, Text):
            raise Unsupported(f"the Gemini API accepts no {type(part).__name__} in the system instruction, only text")
    return _parts(content)


def _parts(content: Content) -> list[Json]:
    return [{"text": content}] if isinstance(content, str) else [_part(part) for part in content]


def _part(part: Part) -> Json:
    if isinstance(part, Text):
        return {"text": part.text}
    if isinstance(part, Media):
        return _media(part)
    raise Unsupported(f"the Gemini API accepts no {type(part).__name__} in a message of the user")


def _media(part: Media) -> Json:
    if part.data is not None:
        return {"inlineData": {"mimeType": part.media_type, "data": part.base64()}}
    named = {} if part.media_type is None else {"mimeType": part.media_type}
    return {"fileData": {"fileUri": part.url, **named}}


# Answers of the model.


def _answer_parts(content: Sequence[Part], calls: Sequence[ToolCall], *, needs_signatures: bool) -> list[Json]:
    """Return the parts of an answer, each with its signature."""
    text = "".join([part.text for part in content if isinstance(part, Text)])
    thoughts = [part for part in content if isinstance(part, Reasoning) and is_own(part)]
    signed = [(part, *split_signature(part.signature or "")) for part in thoughts]
    places = [(place, signature) for part, place, signature in signed if not part.text]
    return [
        *[
            {"text": part.text, "thought": True, "thoughtSignature": signature}
            for part, _, signature in signed
            if part.text
        ],
        *[_media(part) for part in content if isinstance(part, Media)],
        *signed_texts(text, [one for one in places if one[0].call is None]),
        *_calls(calls, places, needs_signatures=needs_signatures),
    ]


def _calls(
    calls: Sequence[ToolCall], signed: Sequence[tuple[SignedPlace, str]], *, needs_signatures: bool
) -> Iterable[Json]:
    signatures = {place.call: signature for place, signature in signed if place.call is not None}
    if needs_signatures and not signatures:
        # Calls of other models have no signature, and Gemini refuses a conversation whose first call has none.
        signatures = {0: SKIP_VALIDATION}
    for number, call in enumerate(calls):
        signature = {"thoughtSignature": signatures[number]} if number in signatures else {}
        yield {"functionCall": {**_id(call.id), "name": wire_name(call.name), "args": _arguments(call)}, **signature}


def _id(given: str) -> Json:
    return {} if given.startswith(MADE_UP_ID) else {"id": given}


def _arguments(call: ToolCall) -> Json:
    try:
        return call.parse()
    except ValueError:
        # The API accepts objects only, but another model may have written anything.
        return {"invalid_json": call.arguments}


def _result(result: ToolResult, calls: dict[str, ToolCall]) -> Json:
    call = calls.get(result.id)
    if call is None:
        raise BadRequest(
            f"a ToolResult has the id {result.id!r}, which no tool call of the last answer has",
            hint="Put the answer with the tool calls before their results. The Gemini API needs the name of the tool.",
        )
    response = {"error" if result.is_error else "output": result.text}
    content = () if isinstance(result.content, str) else result.content
    media = [_media(part) for part in content if isinstance(part, Media)]
    more = {"parts": media} if media else {}
    return {"functionResponse": {**_id(result.id), "name": wire_name(call.name), "response": response, **more}}
