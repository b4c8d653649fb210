"""Build the JSON body of a request, in the parts that all providers share."""

import json
from collections.abc import Collection, Sequence
from typing import Any, cast

from sampling.errors import BadRequest, RequestTooLarge
from sampling.options import Options

__all__ = ["add_extra", "encode_json", "resolve_model"]


# Made once: `json.dumps` makes one for every call.
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=dict)


_ADDED = ("tools", "include")
"""Lists of a request that extra options add to."""


def resolve_model(model: str | None, variable: str) -> str:
    """Return the name of the model, or raise an error that says where to give one."""
    if model is None:
        raise BadRequest(
            "no model was given",
            hint=f"Pass model=… to the backend or in Options, or set {variable}. A server with one model accepts any.",
        )
    return model


def add_extra(body: dict[str, Any], options: Options, reserved: Collection[str]) -> None:
    """
    Add the extra options to a body, or raise if they set a field of the backend's own.

    Extra tools, such as those that the server runs, are added to those of the request, and so is what the answer
    should include.
    """
    if found := sorted(options.extra.keys() & set(reserved)):
        raise BadRequest(
            f"options.extra sets {', '.join(found)}, which the backend sets itself",
            hint="Remove them: the messages come from the request, and every request is streamed so that it can stop.",
        )
    ours = {name: body.get(name) for name in _ADDED}
    body.update(options.extra)
    for name, given in ours.items():
        more = options.extra.get(name)
        if given and isinstance(more, list | tuple):
            body[name] = [*given, *[item for item in cast("Sequence[object]", more) if item not in given]]


def encode_json(body: dict[str, Any], max_bytes: int) -> bytes:
    """Encode a body as JSON, or raise if that fails or it is too large."""
    try:
        data = _ENCODER.encode(body).encode()
    except UnicodeEncodeError:
        raise BadRequest("the request contains half of a surrogate pair, which can't be sent as UTF-8") from None
    except (TypeError, ValueError, RecursionError) as error:
        # Without the message of the error, which may quote the request.
        raise BadRequest(f"options.extra or options.schema is not JSON ({type(error).__name__})") from None
    if len(data) > max_bytes:
        raise RequestTooLarge(f"the request has {len(data):,} bytes, more than max_request_bytes={max_bytes:,}")
    return data
