"""Parts of messages: text, images, audio, files, tool calls, their results, and reasoning."""

import mimetypes
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Sequence
from os import PathLike, fspath
from pathlib import Path
from stat import S_ISREG
from typing import Any, ClassVar, TypeAlias, cast
from urllib.parse import unquote, unquote_to_bytes, urlsplit

import attrs

from sampling._arguments import check_bool, check_items, check_str, short_repr, wrong_type
from sampling._json.bounded import loads

__all__ = [
    "MAX_MEDIA_BYTES",
    "Audio",
    "Content",
    "File",
    "Image",
    "Media",
    "Part",
    "Reasoning",
    "Source",
    "Text",
    "ToolCall",
    "ToolResult",
    "as_content",
    "content_chars",
    "content_text",
    "media_of",
]

Source: TypeAlias = bytes | str | PathLike[str]
"""The bytes of an image, a sound or a file, its path, or its URL."""

MAX_MEDIA_BYTES = 50 * 2**20
"""The most bytes of one image, sound or file."""

_CHARS_PER_URL = 4_000
"""The estimate for media whose size is not known, as characters of text."""

_URL = re.compile(r"(?:https?|gs)://", re.IGNORECASE)
_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]*/[a-z0-9][a-z0-9!#$&^_.+-]*\Z")
_ALIASES = {"image/jpg": "image/jpeg", "audio/mp3": "audio/mpeg", "audio/x-wav": "audio/wav", "audio/wave": "audio/wav"}
# Compiled on first use, because most programs send no media.
_MAGIC: tuple[tuple[bytes, str], ...] = (
    (rb"\x89PNG\r\n\x1a\n", "image/png"),
    (rb"\xff\xd8\xff", "image/jpeg"),
    (rb"GIF8[79]a", "image/gif"),
    (rb"RIFF....WEBP", "image/webp"),
    (rb"....ftyp(?:heic|heix|mif1)", "image/heic"),
    (rb"....ftypavif", "image/avif"),
    (rb"RIFF....WAVE", "audio/wav"),
    (rb"ID3|\xff[\xfb\xf3\xf2]", "audio/mpeg"),
    (rb"\xff[\xf1\xf9]", "audio/aac"),
    (rb"fLaC", "audio/flac"),
    (rb"OggS", "audio/ogg"),
    (rb"....ftypM4A", "audio/mp4"),
    (rb"%PDF-", "application/pdf"),
)
_RECOGNIZED = frozenset(media_type for _, media_type in _MAGIC)


@attrs.frozen
class Text:
    """A text."""

    text: str

    def __attrs_post_init__(self) -> None:
        check_str("text", self.text)

    @property
    def chars(self) -> int:
        """The number of characters."""
        return len(self.text)


@attrs.frozen
class Reasoning:
    """A thought of the model. A signed one goes back to its provider with the conversation."""

    text: str
    signature: str | None = None
    """The signature by which the provider recognises its own thought."""

    def __attrs_post_init__(self) -> None:
        check_str("text", self.text)
        if self.signature is not None:
            check_str("signature", self.signature)

    @property
    def chars(self) -> int:
        """The number of characters."""
        return len(self.text)


@attrs.frozen
class ToolCall:
    """A tool call of the model."""

    id: str
    name: str
    arguments: str
    """The JSON text as the model wrote it. It may be invalid."""

    def __attrs_post_init__(self) -> None:
        check_str("id", self.id)
        check_str("name", self.name)
        check_str("arguments", self.arguments)

    @property
    def chars(self) -> int:
        """The number of characters."""
        return len(self.name) + len(self.arguments)

    def parse(self) -> dict[str, Any]:
        """Return the arguments as a dict, or raise ValueError if they are not a JSON object."""
        try:
            # Several servers send no text at all for a tool without parameters.
            arguments: object = loads(self.arguments) if self.arguments.strip() else {}
        except ValueError as error:
            raise ValueError(f"the arguments of {self.name!r} are not JSON: {error}") from None
        if not isinstance(arguments, dict):
            raise ValueError(  # noqa: TRY004 - the model is wrong, not the caller
                f"the arguments of {self.name!r} must be a JSON object, got {short_repr(arguments)}"
            )
        return cast("dict[str, Any]", arguments)


# Media.


@attrs.frozen(repr=False)
class Media:
    """The base class of `Image`, `Audio` and `File`. A path is read when the part is made."""

    source: Source = attrs.field(eq=False)
    """The bytes, path or URL, as given."""

    media_type: str | None = None
    """The media type, such as "image/png". Guessed if not given, and None for a URL without a known suffix."""

    data: bytes | None = attrs.field(init=False)
    """The content, or None for a URL."""

    url: str | None = attrs.field(init=False)
    """The URL, or None if there are bytes."""

    _digest: str | None = attrs.field(default=None, init=False, eq=False)

    _kind: ClassVar[str] = "file"
    _family: ClassVar[str] = ""
    _bytes_per_char: ClassVar[int] = 16

    def __attrs_post_init__(self) -> None:
        given = None if self.media_type is None else self._check_media_type(self.media_type)
        source = self.source
        data, name = None, ""
        if isinstance(source, str) and source[:5].lower() == "data:":
            data, named = _from_data_url(source)
            given = given or named
        elif not isinstance(source, str) or not _URL.match(source):
            data, name = _read(source, self._kind)
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "url", None if data is not None else _checked_url(cast("str", source)))
        media_type = (
            self._guess_from_name(urlsplit(str(source)).path) if data is None else self._sniff(data, name, given)
        )
        object.__setattr__(self, "media_type", given or media_type)

    def _check_media_type(self, given: str) -> str:
        media_type = check_str("media_type", given, empty=False).strip().lower()
        media_type = _ALIASES.get(media_type, media_type)
        if not _MEDIA_TYPE.match(media_type):
            raise ValueError(f"media_type must be a media type such as 'image/png', got {given!r}")
        if not media_type.startswith(self._family):
            raise ValueError(f"media_type must begin with {self._family!r} for {self._kind}, got {given!r}")
        return media_type

    def _guess_from_name(self, name: str) -> str | None:
        guess = mimetypes.guess_type(unquote(name))[0]
        guess = None if guess is None else _ALIASES.get(guess, guess)
        return guess if guess is not None and guess.startswith(self._family) else None

    def _sniff(self, data: bytes, name: str, given: str | None) -> str | None:
        """Return the media type of the bytes, or raise if it is not the given one, or not of this kind."""
        found = next((media_type for magic, media_type in _MAGIC if re.match(magic, data, re.DOTALL)), None)
        if found is not None and not found.startswith(self._family):
            raise ValueError(f"source must be {self._kind}, got {found} ({len(data):,} bytes)")
        if given is None:
            return found or self._guess_unrecognized(data, name)
        if found is None and given in _RECOGNIZED:
            raise ValueError(f"source can't be read as {given}: its first bytes are {data[:8]!r}")
        if found is not None and given in _RECOGNIZED and given != found:
            raise ValueError(f"media_type is {given!r}, but the bytes are {found}")
        return given

    def _guess_unrecognized(self, data: bytes, name: str) -> str | None:
        guess = self._guess_from_name(name)
        if guess is None or guess in _RECOGNIZED:
            raise ValueError(
                f"source can't be read as {self._kind}: its first bytes are {data[:8]!r}. "
                "If its format is a rare one, give its media_type."
            )
        return guess

    @property
    def digest(self) -> str:
        """The SHA-256 of the bytes, or of the URL."""
        if self._digest is None:
            # Slow to import, because it loads a library of the system.
            import hashlib  # noqa: PLC0415

            content = self.data if self.data is not None else cast("str", self.url).encode("utf-8", "surrogatepass")
            object.__setattr__(self, "_digest", hashlib.sha256(content).hexdigest())
        return cast("str", self._digest)

    @property
    def chars(self) -> int:
        """An estimate of the size for the model, as characters of text."""
        return _CHARS_PER_URL if self.data is None else 1 + len(self.data) // self._bytes_per_char

    def base64(self) -> str:
        """Return the bytes as base64. A URL has none."""
        if self.data is None:
            raise ValueError(f"{self!r} is a URL: its bytes are not here")
        return b64encode(self.data).decode("ascii")

    def data_url(self) -> str:
        """Return the URL, or the bytes as a data URL."""
        return self.url if self.url is not None else f"data:{self.media_type};base64,{self.base64()}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._described())})"

    def _described(self) -> list[str]:
        if self.data is None:
            # Without the query, which may hold the signature of a signed URL.
            parts = urlsplit(cast("str", self.url))
            return [short_repr(f"{parts.scheme}://{parts.hostname}{parts.path}")]
        path = [] if isinstance(self.source, bytes | bytearray) or str(self.source)[:5] == "data:" else [self.source]
        return [*(short_repr(Path(str(one)).name) for one in path), str(self.media_type), f"{len(self.data):,} bytes"]


@attrs.frozen(repr=False)
class Image(Media):
    """An image: bytes, a path or a URL."""

    _kind: ClassVar[str] = "an image"
    _family: ClassVar[str] = "image/"

    @property
    def chars(self) -> int:
        """An estimate of the size for the model, as characters of text. It hardly depends on the bytes."""
        return _CHARS_PER_URL


@attrs.frozen(repr=False)
class Audio(Media):
    """A sound: bytes, a path or a URL."""

    _kind: ClassVar[str] = "audio"
    _family: ClassVar[str] = "audio/"
    _bytes_per_char: ClassVar[int] = 256


@attrs.frozen(repr=False)
class File(Media):
    """A document: bytes, a path or a URL."""

    _kind: ClassVar[str] = "a file"

    name: str | None = None
    """The name that the model sees. By default that of the path or the URL."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.name is not None:
            check_str("name", self.name, empty=False)
            return
        if not isinstance(self.source, bytes | bytearray) and str(self.source)[:5].lower() != "data:":
            place = Path(self.source) if self.url is None else Path(unquote(urlsplit(self.url).path))
            object.__setattr__(self, "name", place.name or None)

    def _guess_unrecognized(self, data: bytes, name: str) -> str | None:
        guess = self._guess_from_name(name)
        if guess is not None and guess not in _RECOGNIZED:
            return guess
        try:
            data.decode()
        except UnicodeDecodeError:
            return "application/octet-stream"
        return "text/plain"


def _read(source: object, kind: str) -> tuple[bytes, str]:
    """Return the bytes and the name of a source that is not a URL."""
    if isinstance(source, bytes | bytearray):
        data, name = bytes(source), ""
    elif isinstance(source, str | PathLike):
        path = fspath(cast("str | PathLike[str]", source))
        data, name = _read_file(Path(path)), path
    else:
        raise wrong_type("source", source, f"{kind} as bytes, a path or a URL")
    if not data:
        raise ValueError("source must not be empty")
    if len(data) > MAX_MEDIA_BYTES:
        raise ValueError(f"source must have at most {MAX_MEDIA_BYTES:,} bytes, got {len(data):,}")
    return data, name


def _read_file(path: Path) -> bytes:
    try:
        # Opening a pipe would wait for a writer, and devices such as a terminal never end.
        if not S_ISREG(path.stat().st_mode):
            raise ValueError("it is not a regular file")  # noqa: TRY301
        with path.open("rb") as file:
            return file.read(MAX_MEDIA_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(
            f"source must be bytes, a path or a URL, and the path {short_repr(str(path))} can't be read: {reason}"
        ) from None


def _from_data_url(url: str) -> tuple[bytes, str | None]:
    head, comma, body = url[5:].partition(",")
    media_type, *settings = head.split(";")
    try:
        if not comma:
            raise ValueError("it has no comma")  # noqa: TRY301
        data = b64decode(unquote(body), validate=True) if "base64" in settings else unquote_to_bytes(body)
    except (Base64Error, ValueError) as error:
        raise ValueError(f"source is a data URL that can't be read: {error}") from None
    return _read(data, "media")[0], media_type.strip().lower() or None


def _checked_url(url: str) -> str:
    try:
        host = urlsplit(url).hostname
    except ValueError:
        host = None
    if not host or any(character.isspace() for character in url):
        raise ValueError(
            f"source must be a URL with a host and without spaces, got {short_repr(url.partition('?')[0])}"
        )
    return url


# Contents.


@attrs.frozen
class ToolResult:
    """The result of a tool call, in a message of role "tool"."""

    id: str
    """The id of the call."""

    content: "str | Sequence[Text | Image | Audio | File]"
    """A text, or a sequence of parts."""

    is_error: bool = False

    def __attrs_post_init__(self) -> None:
        check_str("id", self.id)
        check_bool("is_error", self.is_error)
        if type(self.content) is not str:
            content = as_content(self.content, (Text, Media), "text, images, audio and files")
            object.__setattr__(self, "content", content)

    @property
    def text(self) -> str:
        """The text of the result."""
        return content_text(self.content)

    @property
    def chars(self) -> int:
        """An estimate of the size, as characters of text."""
        return content_chars(self.content)


Part: TypeAlias = Text | Image | Audio | File | ToolCall | ToolResult | Reasoning
"""A part of a message."""

Content: TypeAlias = str | Sequence[Part]
"""The content of a message: a text, or a sequence of parts."""

_PARTS = (Text, Media, ToolCall, ToolResult, Reasoning)


def as_content(
    content: object, kinds: tuple[type[Any], ...] = _PARTS, allowed: str = "parts, such as Text and Image"
) -> "str | tuple[Part, ...]":
    """Return a checked content. A sequence of parts becomes a tuple."""
    if isinstance(content, str):
        return content
    if isinstance(content, _PARTS):
        raise wrong_type("content", content, "a str or a sequence of parts (put a single part in brackets)")
    parts = check_items("content", content, "a str or a sequence of parts")
    if not parts:
        raise ValueError("content must have at least one part")
    # A str in the list can only be meant as a text.
    parts = tuple(Text(part) if isinstance(part, str) else part for part in parts)
    for part in parts:
        if not isinstance(part, kinds):
            raise wrong_type("an item of content", part, f"one of {allowed}")
    return cast("tuple[Part, ...]", parts)


def content_text(content: "Content") -> str:
    """Return the text of a content: all of its text parts, joined."""
    if isinstance(content, str):
        return content
    return "".join([part.text for part in content if isinstance(part, Text)])


def content_chars(content: "Content") -> int:
    """Return the size of a content as characters of text. That of media is an estimate."""
    return len(content) if isinstance(content, str) else sum([part.chars for part in content])


def media_of(content: "Content") -> Iterable[Media]:
    """Yield the images, sounds and files of a content, including those in tool results."""
    if isinstance(content, str):
        return
    for part in content:
        if isinstance(part, Media):
            yield part
        elif isinstance(part, ToolResult):
            yield from media_of(part.content)
