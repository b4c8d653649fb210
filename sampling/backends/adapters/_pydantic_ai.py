"""How a pydantic-ai model is asked."""

import importlib
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

from anyio.lowlevel import checkpoint

from sampling.backends.adapters._answers import Pieces
from sampling.backends.adapters._requests import Json, check_roles, known_and_extra, options_of
from sampling.errors import BadRequest
from sampling.messages import Message, Request
from sampling.usage import Usage

__all__ = ["PydanticAIModel"]

_SETTINGS = ("temperature", "max_tokens", "seed", "stop_sequences", "extra_body", "extra_headers")


class PydanticAIModel:
    """A pydantic-ai model, and the names that are needed to ask it."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._messages = importlib.import_module("pydantic_ai.messages")
        self._models = importlib.import_module("pydantic_ai.models")
        self._output = importlib.import_module("pydantic_ai.output")
        self._direct = importlib.import_module("pydantic_ai.direct")

    async def read(self, request: Request, pieces: Pieces) -> Pieces:
        """Read the events of a stream to their end."""
        async with self._open(request) as stream:
            try:
                async for event in stream:
                    await checkpoint()
                    pieces.add(_text(event))
            finally:
                pieces.usage = Usage(stream.usage.input_tokens, stream.usage.output_tokens)
                pieces.report()
        pieces.finish_reason = _finish_reason(stream)
        pieces.model = stream.model_name
        return pieces

    def _open(self, request: Request) -> AbstractAsyncContextManager[Any]:
        check_roles(request.messages, "pydantic-ai")
        options = options_of(request)
        if options.pop("model", self._model.model_name) != self._model.model_name:
            raise BadRequest(
                f"this pydantic-ai model is {self._model.model_name!r}, and options.model asks for another",
                hint="Leave options.model out, or make a backend of that other model.",
            )
        schema = options.pop("response_format", None)
        return cast(
            "AbstractAsyncContextManager[Any]",
            self._direct.model_request_stream(
                self._model,
                [self._history_of(message) for message in request.messages],
                model_settings=_settings(options),
                model_request_parameters=None if schema is None else self._parameters(schema["json_schema"]),
            ),
        )

    def _history_of(self, message: Message) -> Any:
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
    """Return why a stream ended, if its server said so: where it did not, OpenAI's models make up a "stop"."""
    # Only a private name tells; where it is gone, what the model says is believed.
    return stream.finish_reason if getattr(stream, "_has_finish_reason", True) else None


def _text(event: Any) -> str:
    """Return what an event adds to the text; thinking and tool calls add nothing."""
    if event.event_kind == "part_start" and event.part.part_kind == "text":
        return cast("str", event.part.content)
    if event.event_kind == "part_delta" and event.delta.part_delta_kind == "text":
        return cast("str", event.delta.content_delta)
    return ""
