"""Adapter for pydantic-ai models."""

import importlib
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

from anyio.lowlevel import checkpoint

from sampling._arguments import wrong_type
from sampling.backends.adapters._adapted import DEFAULT_TIMEOUT_S, AdaptedBackend
from sampling.backends.adapters._answers import Receive, StreamedText
from sampling.backends.adapters._requests import Json, check_roles, known_and_extra, options_of
from sampling.errors import BadRequest
from sampling.messages import Generation, Message, Request
from sampling.usage import Usage

__all__ = ["from_pydantic_ai"]

_SETTINGS = ("temperature", "max_tokens", "seed", "stop_sequences", "extra_body", "extra_headers")


def from_pydantic_ai(
    model: Any, *, timeout_s: float = DEFAULT_TIMEOUT_S, allow_missing_finish: bool = False
) -> AdaptedBackend:
    """
    Create a backend from a pydantic-ai model.

    Args:
        model: A `pydantic_ai.models.Model`, such as `OpenAIChatModel(…)`.

        timeout_s: The time limit for a whole request.

        allow_missing_finish: Accept answers without a finish_reason as complete.
    """
    if not callable(getattr(model, "request_stream", None)):
        raise wrong_type("model", model, "a pydantic-ai model")
    library = _Model(model)

    async def ask(request: Request, receive: Receive) -> Generation:
        answer = await library.read(request, StreamedText(request, receive))
        return answer.generation(allow_missing_finish=allow_missing_finish)

    return AdaptedBackend("pydantic-ai", ask, timeout_s)


class _Model:
    """A pydantic-ai model and the modules that are needed to call it."""

    def __init__(self, model: Any) -> None:
        self._model = model
        # Imported here, because pydantic-ai is not a dependency. It is installed where there is a model of it.
        self._messages = importlib.import_module("pydantic_ai.messages")
        self._models = importlib.import_module("pydantic_ai.models")
        self._output = importlib.import_module("pydantic_ai.output")
        self._direct = importlib.import_module("pydantic_ai.direct")

    async def read(self, request: Request, answer: StreamedText) -> StreamedText:
        """Read all events of a stream."""
        async with self._open(request) as stream:
            try:
                async for event in stream:
                    await checkpoint()  # as in `read_chunks`
                    answer.add(_text(event))
            finally:
                answer.usage = Usage(stream.usage.input_tokens, stream.usage.output_tokens)
                answer.report()
        answer.finish_reason = _finish_reason(stream)
        answer.model = stream.model_name
        return answer

    def _open(self, request: Request) -> AbstractAsyncContextManager[Any]:
        check_roles(request.messages, "pydantic-ai")
        options = options_of(request)
        if options.pop("model", self._model.model_name) != self._model.model_name:
            raise BadRequest(
                f"options.model must be {self._model.model_name!r}, the model of this pydantic-ai backend",
                hint="Leave options.model out, or create another backend for that model.",
            )
        schema = options.pop("response_format", None)
        return cast(
            "AbstractAsyncContextManager[Any]",
            self._direct.model_request_stream(
                self._model,
                [self._as_history(message) for message in request.messages],
                model_settings=_settings(options),
                model_request_parameters=None if schema is None else self._parameters(schema["json_schema"]),
            ),
        )

    def _as_history(self, message: Message) -> Any:
        names = self._messages
        if message.role == "assistant":
            return names.ModelResponse(parts=[names.TextPart(message.content)])
        part = names.UserPromptPart if message.role == "user" else names.SystemPromptPart
        return names.ModelRequest(parts=[part(message.content)])

    def _parameters(self, schema: Json) -> Any:
        definition = self._output.OutputObjectDefinition(
            json_schema=schema["schema"], name=schema["name"], strict=schema["strict"]
        )
        return self._models.ModelRequestParameters(output_mode="native", output_object=definition)


def _settings(options: Json) -> Json:
    if "stop" in options:
        options["stop_sequences"] = options.pop("stop")
    return known_and_extra(options, _SETTINGS)


def _finish_reason(stream: Any) -> str | None:
    """Return the finish_reason of the server, or None where pydantic-ai invented a "stop"."""
    # Only a private attribute reveals it. Without that attribute, trust the reason given.
    return stream.finish_reason if getattr(stream, "_has_finish_reason", True) else None


def _text(event: Any) -> str:
    """Return the text of an event, which is empty for thinking and tool calls."""
    if event.event_kind == "part_start" and event.part.part_kind == "text":
        return cast("str", event.part.content)
    if event.event_kind == "part_delta" and event.delta.part_delta_kind == "text":
        return cast("str", event.delta.content_delta)
    return ""
