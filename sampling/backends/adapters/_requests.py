"""Convert a `Request` into arguments of other libraries. Most take the OpenAI format."""

import json
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias, cast

import anyio
import attrs

from sampling.backends.openai._request import encode_body
from sampling.errors import BadRequest, FatalError
from sampling.messages import Message, Request

__all__ = ["body_for", "check_loop", "check_roles", "known_and_extra", "options_of"]

Json: TypeAlias = dict[str, Any]

_MAX_REQUEST_BYTES = 32 * 1024 * 1024
_NO_MODEL = "-"
"""A placeholder for `encode_body`, which requires a model. It is removed again."""


def body_for(request: Request, model: str | None, max_tokens_name: str) -> Json:
    """Return the body of a request in the format of the OpenAI API."""
    body = encode_body(
        request,
        model=model,
        endpoint="chat",
        max_tokens_name=max_tokens_name,
        include_usage=True,
        max_bytes=_MAX_REQUEST_BYTES,
    )
    return cast("Json", json.loads(body))


def options_of(request: Request) -> Json:
    """Return the options without the messages. `model` is in it only if the request sets one."""
    # Without its messages, which the library gets in its own format.
    body = body_for(attrs.evolve(request, messages=()), _NO_MODEL, "max_tokens")
    left_out = {"messages", "stream", "stream_options", *(["model"] if body["model"] == _NO_MODEL else [])}
    return {name: value for name, value in body.items() if name not in left_out}


def known_and_extra(options: Json, known: Collection[str]) -> Json:
    """Move options that the library has no argument for into `extra_body`."""
    arguments = {name: value for name, value in options.items() if name in known}
    extra = {name: value for name, value in options.items() if name not in known}
    if extra:
        arguments["extra_body"] = {**(arguments.get("extra_body") or {}), **extra}
    return arguments


def check_roles(messages: Sequence[Message], library: str) -> None:
    """Raise for a tool message without the id of its call."""
    if any(message.role == "tool" and isinstance(message.content, str) for message in messages):
        raise BadRequest(
            f"a message of role 'tool' can't be passed to {library} as text, because it needs the id of its call",
            hint='Use Message("tool", [ToolResult(id, content)]).',
        )


def check_loop(library: str) -> None:
    """Raise `FatalError` on trio, where a library for asyncio would fail with an obscure error."""
    if anyio.get_cancelled_exc_class().__module__.partition(".")[0] == "trio":
        raise FatalError(f"{library} runs on asyncio only, and this is trio", hint="Run it with asyncio.")
