"""Adapter for litellm."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

from sampling._arguments import wrong_type
from sampling.backends._structured import Structured
from sampling.backends._thoughts import thinking_block
from sampling.backends.adapters._adapted import DEFAULT_TIMEOUT_S, AdaptedBackend
from sampling.backends.adapters._answers import Receive, read_chunks
from sampling.backends.adapters._requests import Json, body_for, check_loop
from sampling.errors import Unsupported
from sampling.messages import Generation, Request
from sampling.parts import Reasoning

__all__ = ["from_litellm"]

_WITHOUT_MIN_P = ("gemini/", "vertex_ai/")


def from_litellm(
    acompletion: Callable[..., Awaitable[Any]],
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    structured: Structured = "native",
    **defaults: Any,
) -> AdaptedBackend:
    """
    Create a backend from `litellm.acompletion` or a function with the same signature. It needs asyncio.

    An option that the provider does not support raises `Unsupported`, unless you pass `drop_params=True`.

    Args:
        acompletion: The function, for example that of a `litellm.Router`.

        timeout_s: The time limit for a whole request.

        structured: How to ask for an answer that matches `Options.schema`: "native", "tool" or "prompt".
            Models without schemas need one of the last two.

        defaults: Arguments of every call: model, api_base, api_key, … `Options` override them.
    """
    if not callable(acompletion):
        raise wrong_type("acompletion", acompletion, "a function such as litellm.acompletion")

    async def ask(request: Request, receive: Receive) -> Generation:
        # Only litellm itself needs asyncio. Another function with its signature may run on trio.
        if getattr(acompletion, "__module__", "").startswith("litellm"):
            check_loop("litellm")
        body = body_for(request, cast("str | None", defaults.get("model")), "max_tokens")
        if "min_p" in body and str(body["model"]).startswith(_WITHOUT_MIN_P) and not defaults.get("drop_params"):
            # The only option that litellm drops silently.
            raise Unsupported(
                "litellm does not support Options.min_p for models of Google", hint="Leave the option out."
            )
        _add_thinking(body["messages"], request)
        return await read_chunks(await acompletion(**{"max_retries": 0, **defaults, **body}), request, receive)

    return AdaptedBackend("litellm", ask, timeout_s, structured=structured)


def _add_thinking(wire: list[Json], request: Request) -> None:
    """Return signed reasoning in the field in which litellm sent it."""
    answers = [message for message in request.messages if message.role == "assistant"]
    for one, message in zip([one for one in wire if one["role"] == "assistant"], answers, strict=True):
        thoughts = [thinking_block(part) for part in message.content if isinstance(part, Reasoning)]
        if blocks := [block for block in thoughts if block is not None]:
            one["thinking_blocks"] = blocks
