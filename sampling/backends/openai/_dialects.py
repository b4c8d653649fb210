"""Describe how servers with OpenAI's chat API differ."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal
from urllib.parse import urlsplit

import attrs

from sampling.backends._tool_names import nine_letter_id, short_id
from sampling.backends.http._fields import Json
from sampling.backends.openai._media import mistral_audio, mistral_file, openai_audio, openai_file
from sampling.parts import Audio, File

__all__ = ["COMPATIBLE", "MISTRAL", "OPENAI", "Dialect", "dialect_of"]


@attrs.frozen
class Dialect:
    """The field names and formats of one kind of server."""

    without: tuple[str, ...] = ()
    """The options that it does not support."""

    seed: str = "seed"
    has_stream_options: bool = True
    roles: Mapping[str, str] = MappingProxyType({})
    """Roles that it calls by another name."""

    call_id: Callable[[str], str] = short_id
    reasoning: Literal["all", "thinking", "none"] = "all"
    """The reasoning that goes back: as it came, as Mistral's chunks only, or none."""

    audio: Callable[[Audio], Json] = openai_audio
    file: Callable[[File], Json] = openai_file
    has_parts_in_results: bool = False
    """True if the result of a tool may have images and files."""


COMPATIBLE = Dialect()
"""Any other server."""

OPENAI = Dialect(without=("top_k", "min_p"), reasoning="none")

# Mistral refuses every field that it does not know: https://docs.mistral.ai/api/endpoint/chat
MISTRAL = Dialect(
    without=("min_p", "logit_bias"),
    seed="random_seed",
    # It always reports the usage.
    has_stream_options=False,
    roles=MappingProxyType({"developer": "system"}),
    call_id=nine_letter_id,
    reasoning="thinking",
    audio=mistral_audio,
    file=mistral_file,
    has_parts_in_results=True,
)


def dialect_of(base_url: str) -> Dialect:
    """Return the dialect of a server, by its address."""
    host = f".{urlsplit(base_url).hostname or ''}"
    # Regions have hosts of their own, such as eu.api.openai.com.
    if host.endswith(".api.openai.com"):
        return OPENAI
    return MISTRAL if host.endswith(".mistral.ai") else COMPATIBLE
