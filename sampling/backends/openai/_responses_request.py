"""Convert a `Request` into the JSON of OpenAI's Responses API."""

from collections.abc import Iterable, Sequence
from typing import Any

from sampling._json.schemas import is_strict
from sampling.backends._structured import AnswerSchema, Structured, answer_schema, answer_tool_name, with_instruction
from sampling.backends._thoughts import ENCRYPTED, SHOWN
from sampling.backends._tool_names import short_id, wire_name
from sampling.backends.http._fields import Json
from sampling.backends.openai._messages import wire_tool_choice
from sampling.errors import BadRequest, Unsupported
from sampling.messages import Message, Options, Request
from sampling.parts import File, Image, Part, Reasoning, Text, ToolCall, ToolResult
from sampling.tools import Tool

__all__ = ["MISSING_OPTIONS", "responses_body"]

MISSING_OPTIONS = ("seed", "stop", "top_k", "min_p", "frequency_penalty", "presence_penalty", "logit_bias")
"""Options that the Responses API does not support."""


def responses_body(request: Request, model: str, structured: Structured) -> Json:
    """Return the body of the POST for a request."""
    options = request.options
    schema = None if options.schema is None else answer_schema(options.schema)
    messages = request.messages
    if schema is not None and structured == "prompt":
        messages = with_instruction(messages, schema)
    chosen: Json = {
        "model": model,
        "input": _items(messages),
        "temperature": options.temperature,
        "top_p": options.top_p,
        "max_output_tokens": options.max_tokens,
        "reasoning": None if options.reasoning_effort is None else {"effort": options.reasoning_effort},
        **_logprobs(options.logprobs),
        **_tools(options, schema if structured == "tool" else None),
    }
    if schema is not None and structured == "native":
        named = {"name": schema.name, "schema": dict(schema.schema), "strict": schema.strict}
        chosen["text"] = {"format": {"type": "json_schema", **named}}
    return {name: value for name, value in chosen.items() if value is not None}


def _logprobs(logprobs: int | None) -> Json:
    if logprobs is None or logprobs is False:
        return {}
    alternatives = None if isinstance(logprobs, bool) else logprobs
    return {"include": ["message.output_text.logprobs"], "top_logprobs": alternatives}


def _tools(options: Options, answer: AnswerSchema | None) -> Json:
    tools = [_tool(one) for one in options.tools]
    choice: Any = options.tool_choice
    if answer is not None:
        # Beside other tools, the model may call them first.
        choice = (tools and choice) or "required"
        tools.append(
            _function(answer_tool_name(options), "Give the answer.", dict(answer.schema), strict=answer.strict)
        )
    if not tools:
        if choice not in {None, "none"}:
            raise BadRequest(f"options.tool_choice is {choice!r}, but there are no options.tools")
        return {}
    wired = wire_tool_choice(choice)
    return {"tools": tools, "tool_choice": {"type": "function", "name": choice} if isinstance(wired, dict) else wired}


def _tool(tool: Tool) -> Json:
    # Unlike the chat API, this one takes a schema for strict unless it is told otherwise.
    return _function(tool.name, tool.description, dict(tool.schema), strict=is_strict(tool.schema))


def _function(name: str, description: str, parameters: Json, *, strict: bool) -> Json:
    return {"type": "function", "name": name, "description": description, "parameters": parameters, "strict": strict}


def _items(messages: Iterable[Message]) -> list[Json]:
    items: list[Json] = []
    for message in messages:
        if isinstance(message.content, str):
            items.append({"role": message.role, "content": message.content})
        elif message.role == "assistant":
            items.extend(_assistant_items(message.content))
        elif message.role == "tool":
            items.extend(_result(part) for part in message.content if isinstance(part, ToolResult))
        else:
            items.append({"role": message.role, "content": [_block(part) for part in message.content]})
    return items


def _assistant_items(content: Sequence[Part]) -> Iterable[Json]:
    for part in content:
        if isinstance(part, Text):
            yield {"role": "assistant", "content": part.text}
        elif isinstance(part, ToolCall):
            call = {"call_id": short_id(part.id), "name": wire_name(part.name), "arguments": part.arguments or "{}"}
            yield {"type": "function_call", **call}
        elif isinstance(part, Reasoning):
            yield from _thought(part, has_calls=any(isinstance(other, ToolCall) for other in content))
        else:
            raise Unsupported(f"the OpenAI Responses API takes no {type(part).__name__} in the message of an assistant")


def _thought(part: Reasoning, *, has_calls: bool) -> Iterable[Json]:
    signature = part.signature or ""
    if signature.startswith(ENCRYPTED):
        summary = [{"type": "summary_text", "text": part.text}] if part.text else []
        yield {"type": "reasoning", "summary": summary, "encrypted_content": signature.removeprefix(ENCRYPTED)}
    elif signature.startswith(SHOWN) and (has_calls or signature != SHOWN):
        # Without a proof only where it has to be, as in the chat API: DeepSeek wants to know what led to its calls.
        shown = [{"type": "reasoning_text", "text": part.text}]
        proof = {} if signature == SHOWN else {"encrypted_content": signature.removeprefix(SHOWN)}
        yield {"type": "reasoning", "summary": [], "content": shown, **proof}


def _result(result: ToolResult) -> Json:
    content = result.content
    output: Any = content if isinstance(content, str) else [_block(part) for part in content]
    return {"type": "function_call_output", "call_id": short_id(result.id), "output": output}


def _block(part: object) -> Json:
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    if isinstance(part, Image):
        return {"type": "input_image", "image_url": part.data_url(), "detail": "auto"}
    if isinstance(part, File):
        if part.data is None:
            return {"type": "input_file", "file_url": part.url}
        return {"type": "input_file", "filename": part.name or "file", "file_data": part.data_url()}
    raise Unsupported(f"the OpenAI Responses API accepts no {type(part).__name__} in a message")
