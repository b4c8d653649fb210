"""Adapter for litellm."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

from sampling._arguments import wrong_type
from sampling.backends.adapters._adapted import DEFAULT_TIMEOUT_S, AdaptedBackend
from sampling.backends.adapters._answers import Receive, read_chunks
from sampling.backends.adapters._requests import body_for, check_loop
from sampling.messages import Generation, Request

__all__ = ["from_litellm"]


def from_litellm(
    acompletion: Callable[..., Awaitable[Any]], *, timeout_s: float = DEFAULT_TIMEOUT_S, **defaults: Any
) -> AdaptedBackend:
    """
    Create a backend from `litellm.acompletion` or a function with the same signature. It needs asyncio.

    Args:
        acompletion: The function, for example that of a `litellm.Router`.

        timeout_s: The time limit for a whole request.

        defaults: Arguments of every call: model, api_base, api_key, … `Options` override them.
    """
    if not callable(acompletion):
        raise wrong_type("acompletion", acompletion, "a function such as litellm.acompletion")

    async def ask(request: Request, receive: Receive) -> Generation:
        # Only litellm itself needs asyncio. Another function with its signature may run on trio.
        if getattr(acompletion, "__module__", "").startswith("litellm"):
            check_loop("litellm")
        body = body_for(request, cast("str | None", defaults.get("model")), "max_tokens")
        return await read_chunks(await acompletion(**{"max_retries": 0, **defaults, **body}), request, receive)

    return AdaptedBackend("litellm", ask, timeout_s)
