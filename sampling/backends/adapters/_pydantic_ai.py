"""Adapter for pydantic-ai models."""

import importlib
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

from anyio.lowlevel import checkpoint

from sampling._arguments import wrong_type
from sampling.backends._structured import Structured
from sampling.backends._support import TEXT_PARTS, Support
from sampling.backends.adapters._adapted import DEFAULT_TIMEOUT_S, AdaptedBackend
from sampling.backends.adapters._answers import Receive, StreamedText
from sampling.backends.adapters._pydantic_ai_settings import ModelSettings
from sampling.backends.adapters._pydantic_ai_thoughts import (
    TEXT,
    carried_details,
    is_carrier,
    thinking_fields,
    thought_of,
)
from sampling.backends.adapters._requests import Json, check_roles, options_of
from sampling.errors import BadRequest, Unsupported
from sampling.messages import Generation, Message, Request
from sampling.parts import Audio, Content, File, Image, Media, Part, Reasoning, Text, ToolCall, ToolResult
from sampling.usage import Usage

__all__ = ["from_pydantic_ai"]


def from_pydantic_ai(
    model: Any,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    allow_missing_finish: bool = False,
    structured: Structured = "native",
    drop_unsupported: bool = False,
) -> AdaptedBackend:
    """
    Create a backend from a pydantic-ai model.

    An option that this model does not support raises `Unsupported`. Items of `Options.extra` that begin with the name
    of the provider, such as `google_safety_settings`, become settings of the model, and all others fields of the body.

    Args:
        model: A `pydantic_ai.models.Model`, such as `OpenAIChatModel(…)`. Its retries are turned off if they can be.

        timeout_s: The time limit for a whole request.

        allow_missing_finish: Accept answers without a finish_reason as complete.

        structured: How to ask for an answer that matches `Options.schema`: "native", "tool" or "prompt".
            Models without schemas need one of the last two.

        drop_unsupported: Drop options that the model does not support, with a warning.
    """
    if not callable(getattr(model, "request_stream", None)):
        raise wrong_type("model", model, "a pydantic-ai model")
    settings = ModelSettings(model)
    library = _Model(model, settings)
    support = Support(settings.name, (*TEXT_PARTS, Media), settings.missing(), drop_unsupported)

    async def ask(request: Request, receive: Receive) -> Generation:
        answer = await library.read(request, StreamedText(request, receive))
        return answer.generation(allow_missing_finish=allow_missing_finish)

    return AdaptedBackend("pydantic-ai", ask, timeout_s, support=support, structured=structured)


class _Model:
    """A pydantic-ai model and the modules that are needed to call it."""

    def __init__(self, model: Any, settings: ModelSettings) -> None:
        self._model = model
        self._settings = settings
        # Imported here, because pydantic-ai is not a dependency. It is installed where there is a model of it.
        self._messages = importlib.import_module("pydantic_ai.messages")
        self._models = importlib.import_module("pydantic_ai.models")
        self._output = importlib.import_module("pydantic_ai.output")
        self._tools = importlib.import_module("pydantic_ai.tools")
        self._direct = importlib.import_module("pydantic_ai.direct")

    async def read(self, request: Request, answer: StreamedText) -> StreamedText:
        """Read all events of a stream."""
        async with self._open(request) as stream:
            try:
                async for event in stream:
                    await checkpoint()  # as in `read_chunks`
                    answer.add(_text(event))
            finally:
                answer.usage = _usage(stream.usage)
                answer.report()
        answer.finish_reason = _finish_reason(stream)
        answer.model = stream.model_name
        response = stream.get()
        answer.tool_calls = tuple(_tool_call(part) for part in response.parts if part.part_kind == "tool-call")
        answer.thoughts = tuple([thought for part in response.parts if (thought := thought_of(part)) is not None])
        answer.logprobs = _logprobs(response)
        if response.provider_response_id is not None:
            answer.raw = {"id": response.provider_response_id}
        return answer

    def _open(self, request: Request) -> AbstractAsyncContextManager[Any]:
        check_roles(request.messages, "pydantic-ai")
        if request.options.model not in {None, self._model.model_name}:
            raise BadRequest(
                f"options.model must be {self._model.model_name!r}, the model of this pydantic-ai backend",
                hint="Leave options.model out, or create another backend for that model.",
            )
        names = {
            part.id: part.name for message in request.messages for part in message.content if isinstance(part, ToolCall)
        }
        return cast(
            "AbstractAsyncContextManager[Any]",
            self._direct.model_request_stream(
                self._model,
                [self._as_history(message, names) for message in request.messages],
                model_settings=self._settings.of(request),
                model_request_parameters=self._parameters(request),
            ),
        )

    def _as_history(self, message: Message, calls: Mapping[str, str]) -> Any:
        """Return a message in the format of pydantic-ai. `calls` has the names of tools by the ids of their calls."""
        names, content = self._messages, message.content
        if message.role == "assistant":
            parts = [Text(content)] if isinstance(content, str) else content
            carried = carried_details(parts)
            return names.ModelResponse(
                parts=[self._answered_part(part, carried) for part in parts if not is_carrier(part)],
                # Some models send nothing back that is not of their provider.
                provider_name=self._model.system,
            )
        if message.role == "tool":
            return names.ModelRequest(
                parts=[
                    names.ToolReturnPart(
                        calls.get(part.id, ""),
                        self._user_content(part.content),
                        part.id,
                        outcome="failed" if part.is_error else "success",
                    )
                    for part in content
                    if isinstance(part, ToolResult)
                ]
            )
        if message.role == "user":
            return names.ModelRequest(parts=[names.UserPromptPart(self._user_content(content))])
        return names.ModelRequest(parts=[names.SystemPromptPart(message.text)])

    def _answered_part(self, part: Part, carried: Mapping[str, Json]) -> Any:
        names = self._messages
        if isinstance(part, ToolCall):
            return names.ToolCallPart(part.name, part.arguments, part.id, **carried.get(part.id, {}))
        if isinstance(part, Reasoning):
            # pydantic-ai sends a signature back only to the provider that it is from.
            return names.ThinkingPart(part.text, **{"provider_name": self._model.system, **thinking_fields(part)})
        if isinstance(part, Text):
            return names.TextPart(part.text, **carried.get(TEXT, {}))
        raise Unsupported(f"pydantic-ai accepts no {type(part).__name__} in the message of an assistant")

    def _user_content(self, content: Content) -> Any:
        return content if isinstance(content, str) else [self._user_part(part) for part in content]

    def _user_part(self, part: Part) -> Any:
        names = self._messages
        if isinstance(part, Media) and part.data is not None:
            return names.BinaryContent(part.data, media_type=part.media_type)
        for kind, url in ((Image, names.ImageUrl), (Audio, names.AudioUrl), (File, names.DocumentUrl)):
            if isinstance(part, kind):
                return url(part.url, media_type=part.media_type)
        return cast("Text", part).text

    def _parameters(self, request: Request) -> Any:
        """Return the tools and the schema of a request."""
        options = request.options
        if options.schema is None and not options.tools:
            return None
        given: Json = {
            "function_tools": [
                self._tools.ToolDefinition(
                    name=one.name, description=one.description, parameters_json_schema=dict(one.schema)
                )
                for one in options.tools
            ]
        }
        if options.schema is not None:
            schema = options_of(request)["response_format"]["json_schema"]
            given["output_mode"] = "native"
            given["output_object"] = self._output.OutputObjectDefinition(
                json_schema=schema["schema"], name=schema["name"], strict=schema["strict"]
            )
        return self._models.ModelRequestParameters(**given)


def _usage(used: Any) -> Usage:
    # Only newer versions of pydantic-ai count reasoning tokens by themselves.
    reasoning = getattr(used, "output_reasoning_tokens", None) or used.details.get("reasoning_tokens", 0)
    cached, written = used.cache_read_tokens or 0, used.cache_write_tokens or 0
    return Usage(used.input_tokens, used.output_tokens, 0.0, cached, reasoning or 0, cache_write_tokens=written)


def _logprobs(response: Any) -> tuple[Any, ...]:
    """Return the log probabilities, which are those of the response or of its parts."""
    details: list[Mapping[str, Any]] = [
        getattr(one, "provider_details", None) or {} for one in (response, *response.parts)
    ]
    return tuple([token for one in details for token in one.get("logprobs") or ()])


def _tool_call(part: Any) -> ToolCall:
    # As the model wrote them, unless pydantic-ai has parsed them.
    arguments = part.args if isinstance(part.args, str) else part.args_as_json_str()
    return ToolCall(part.tool_call_id, part.tool_name, arguments)


def _finish_reason(stream: Any) -> str | None:
    """Return the finish_reason of the server, or None where pydantic-ai invented a "stop"."""
    # Only a private attribute reveals it. Without that attribute, trust the reason given.
    reason = stream.finish_reason if getattr(stream, "_has_finish_reason", True) else None
    # The word of all other libraries.
    return "tool_calls" if reason == "tool_call" else reason


def _text(event: Any) -> str:
    """Return the text of an event, which is empty for thinking and tool calls."""
    if event.event_kind == "part_start" and event.part.part_kind == "text":
        return cast("str", event.part.content)
    if event.event_kind == "part_delta" and event.delta.part_delta_kind == "text":
        return cast("str", event.delta.content_delta)
    return ""
