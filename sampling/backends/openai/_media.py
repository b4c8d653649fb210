"""Convert sounds and files into the JSON of servers with the chat API."""

from sampling.backends.http._fields import Json
from sampling.errors import Unsupported
from sampling.parts import Audio, File

__all__ = ["mistral_audio", "mistral_file", "openai_audio", "openai_file"]

_AUDIO_FORMATS = {"audio/wav": "wav", "audio/mpeg": "mp3"}


def openai_audio(part: Audio) -> Json:
    """Return audio in OpenAI's format: bytes of WAV or MP3."""
    encoding = _AUDIO_FORMATS.get(part.media_type or "")
    if part.data is None or encoding is None:
        given = "a URL" if part.data is None else part.media_type
        raise Unsupported(f"the OpenAI chat API accepts Audio as bytes of {' or '.join(_AUDIO_FORMATS)}, got {given}")
    return {"type": "input_audio", "input_audio": {"data": part.base64(), "format": encoding}}


def openai_file(part: File) -> Json:
    """Return a file in OpenAI's format: bytes with a name."""
    if part.data is None:
        raise Unsupported("the OpenAI chat API accepts a File as bytes, got a URL", hint="Download it first.")
    return {"type": "file", "file": {"filename": part.name or "file", "file_data": part.data_url()}}


def mistral_audio(part: Audio) -> Json:
    """Return audio in Mistral's format: base64 or a URL."""
    return {"type": "input_audio", "input_audio": part.base64() if part.url is None else part.url}


def mistral_file(part: File) -> Json:
    """Return a file in Mistral's format: a URL, or a data URL."""
    named = {} if part.name is None else {"document_name": part.name}
    return {"type": "document_url", "document_url": part.data_url(), **named}
