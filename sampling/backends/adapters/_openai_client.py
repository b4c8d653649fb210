"""Adapter for the `openai` client."""

import inspect
from typing import Any

from sampling._arguments import wrong_type
from sampling.backends._structured import Structured
from sampling.backends.adapters._adapted import DEFAULT_TIMEOUT_S, AdaptedBackend
from sampling.backends.adapters._answers import Receive, read_chunks
from sampling.backends.adapters._requests import body_for, known_and_extra
from sampling.messages import Generation, Request

__all__ = ["from_openai_client"]


def from_openai_client(
    client: Any, *, model: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S, structured: Structured = "native"
) -> AdaptedBackend:
    """
    Create a backend from an `openai.AsyncOpenAI` client.

    Args:
        client: The client. Its key, address and transport are used as they are. Its retries are turned off.

        model: The model, unless `Options` name one.

        timeout_s: The time limit for a whole request.

        structured: How to ask for an answer that matches `Options.schema`: "native", "tool" or "prompt".
    """
    try:
        without_retries = client.with_options(max_retries=0)
        create = without_retries.chat.completions.create
        names = frozenset(inspect.signature(create).parameters)
    except AttributeError:
        raise wrong_type("client", client, "an openai.AsyncOpenAI") from None
    # As in `OpenAIBackend`: only OpenAI itself has the new name.
    max_tokens_name = "max_completion_tokens" if "api.openai.com" in str(client.base_url) else "max_tokens"

    async def ask(request: Request, receive: Receive) -> Generation:
        arguments = known_and_extra(body_for(request, model, max_tokens_name), names)
        return await read_chunks(await create(**arguments), request, receive)

    return AdaptedBackend("openai", ask, timeout_s, structured=structured)
