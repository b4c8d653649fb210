"""
Parse HTTP/1.1 responses from bytes, without any input or output.

The server may be hostile: ambiguous input is an error, and everything that is buffered has a limit.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

__all__ = ["FramingError", "ResponseParser"]

MAX_HEAD_BYTES: Final = 65_536
"""The limit of status line and headers, together with those of all informational responses before."""

MAX_HEADERS: Final = 256
MAX_CHUNK_LINE_BYTES: Final = 4_096
MAX_EXTENSION_BYTES: Final = 65_536
"""The limit of all chunk extensions of a response together."""

MANY_CHUNKS_BYTES: Final = 1_024
"""The number of bytes from which a read probably contains many chunks."""

CACHED_HEAD_BYTES: Final = 1_024
"""The longest head that is remembered."""

_STATUS_LINE = re.compile(r"HTTP/1\.([01]) ([1-9][0-9]{2})(?: .*)?", re.DOTALL)
_DIGITS = re.compile(r"[0-9]{1,18}")
# What `bytes.translate` deletes, which is faster than a regular expression.
_TEXT = b"\t\n" + bytes(range(0x20, 0x7F)) + bytes(range(0x80, 0x100))
_TOKEN = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(;[^\x00-\x08\x0a-\x1f\x7f]*)?\r\n")
_PLAIN_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_HEX_DIGITS = b"0123456789abcdefABCDEF"
_MAX_HEX_DIGITS = 15
_CRLF = b"\r\n"
_START = b"HTTP/1."
_WITHOUT_BODY = (204, 304)


class FramingError(Exception):
    """The bytes are not an HTTP response. The message never quotes them."""


class _Head(NamedTuple):
    """The parsed head of a response."""

    status: int
    headers: Mapping[str, str]
    reusable: bool
    is_chunked: bool
    length: int | None


class ResponseParser:
    """
    Parses one response.

    Feed it the bytes as they arrive, in any pieces. It has the head once `status` is not 0, and `take` returns the
    body so far.
    """

    __slots__ = (
        "_extension_bytes",
        "_head_bytes",
        "_left",
        "_parse",
        "_pieces",
        "_rest",
        "ended",
        "headers",
        "reusable",
        "status",
    )

    def __init__(self) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.ended = False
        """True once the body is complete."""

        self.reusable = True
        """False if no other response can follow on the connection."""

        self._pieces: list[bytes] = []
        self._rest = b""
        """The beginning of a line whose end has not arrived."""

        self._left = 0
        """The bytes of the body or the chunk that have not arrived, with the line end of the chunk."""

        self._head_bytes = 0
        self._extension_bytes = 0
        # Not a bound method, which would make a reference cycle for each response.
        self._parse: Callable[[ResponseParser, bytes], None] = ResponseParser._parse_head

    def feed(self, data: bytes) -> None:
        """Parse the next bytes, or raise `FramingError`."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        self._parse(self, data)

    def take(self) -> bytes:
        """Return the bytes of the body since the last call."""
        pieces = self._pieces
        if not pieces:
            return b""
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return data

    def skim(self, skim: Callable[[bytes], bytes]) -> bool:
        """Let a function read the body so far, and keep what it returns. Return True if that is nothing."""
        data = self.take()
        rest = skim(data) if data else b""
        if rest:
            self._pieces.append(rest)
        return not rest

    def end_of_stream(self) -> bool:
        """Record that the server closed the connection, and return whether the response is complete."""
        self.reusable = False
        if self._parse is ResponseParser._parse_until_close:
            self.ended = True
        return self.ended

    # The head.

    def _parse_head(self, data: bytes) -> None:
        if data[: len(_START)] != _START[: len(data)]:
            raise FramingError("it does not begin with HTTP/1")
        end = self._find_head_end(data)
        if not end:
            self._rest = data
            return
        head = (_known_head if end <= CACHED_HEAD_BYTES else _read_head)(data[:end])
        if head.status >= 200:
            self._choose_body(head)
        elif head.status == 101:
            raise FramingError("it switches protocols")
        if end < len(data):
            self._parse(self, data[end:])

    def _find_head_end(self, data: bytes) -> int:
        """Return where headers or trailers end, or 0 if the end has not arrived."""
        end = data.find(b"\n\r\n") + 3
        # Lines may also end in LF alone.
        short = data.find(b"\n\n", 0, end if end > 2 else len(data)) + 2
        if short > 1:
            end = short
        elif end == 2:
            end = 0
        if self._head_bytes + (end or len(data)) > MAX_HEAD_BYTES:
            raise FramingError(f"more than {MAX_HEAD_BYTES:,} bytes of headers")
        self._head_bytes += end
        return end

    def _choose_body(self, head: _Head) -> None:
        """Take the head, and choose how to read the body."""
        self.status, self.headers, self.reusable, is_chunked, length = head
        if self.status in _WITHOUT_BODY or length == 0:
            self._end()
        elif is_chunked:
            self._parse = ResponseParser._parse_chunks
        elif length is not None:
            self._left = length
            self._parse = ResponseParser._parse_length
        else:
            self.reusable = False
            self._parse = ResponseParser._parse_until_close

    # The body.

    def _parse_length(self, data: bytes) -> None:
        left = self._left
        if len(data) < left:
            self._left = left - len(data)
            self._pieces.append(data)
            return
        self._pieces.append(data[:left])
        self._end()
        if len(data) > left:
            self._parse_trailing(data)

    def _parse_until_close(self, data: bytes) -> None:
        self._pieces.append(data)

    def _parse_chunks(self, data: bytes) -> None:
        position = self._parse_open_chunk(data) if self._left else 0
        if len(data) - position >= MANY_CHUNKS_BYTES:
            position = self._parse_many_chunks(data, position)
        elif position == 0 and self._parse_one_chunk(data):
            return
        self._parse_each_chunk(data, position)

    def _parse_one_chunk(self, data: bytes) -> bool:
        """Take bytes that are one whole chunk, as most reads return, or else do nothing and return False."""
        line = _PLAIN_CHUNK_LINE.match(data)
        if line is None:
            return False
        start = line.end()
        if start < start + int(line[1], 16) == len(data) - 2 and data.endswith(_CRLF):
            self._pieces.append(data[start:-2])
            return True
        return False

    def _parse_each_chunk(self, data: bytes, position: int) -> None:
        size, pieces = len(data), self._pieces
        while position < size:
            line = _CHUNK_LINE.match(data, position)
            if line is None:
                self._keep_chunk_line(data[position:])
                return
            start = line.end()
            digits = line[1]
            if position + len(digits) + 2 != start:
                self._count_extension(start - position)
            stop = start + int(digits, 16)
            position = stop + 2
            if stop > start and data[stop:position] == _CRLF:
                pieces.append(data[start:stop])
                continue
            if stop == start:
                self._parse = ResponseParser._parse_trailers
                self._parse_trailers(data[start:])
            elif position > size:
                self._open_chunk(data, start, stop)
            else:
                raise FramingError("a chunk is longer than it says")
            return

    def _parse_many_chunks(self, data: bytes, position: int) -> int:
        """
        Take chunks all at once, and return where they end, which may be where they begin.

        It reads only what is certain: whole chunks without extensions and without a line end inside.
        """
        parts = data[position:].split(_CRLF)
        # Sizes and chunks alternate. What follows the last line end is neither, and an empty chunk ends the body.
        count = (len(parts) - 1) // 2
        if count and not parts[2 * count - 1]:
            count -= 1
        sizes, chunks = parts[: 2 * count : 2], parts[1 : 2 * count : 2]
        if not all(sizes) or b"".join(sizes).translate(None, _HEX_DIGITS):
            return position
        lengths = list(map(len, chunks))
        if lengths != [int(size, 16) for size in sizes] or not all(lengths):
            return position
        digits = list(map(len, sizes))
        if max(digits, default=0) > _MAX_HEX_DIGITS:
            return position
        self._pieces += chunks
        return position + sum(lengths) + sum(digits) + 4 * count

    def _open_chunk(self, data: bytes, start: int, stop: int) -> None:
        """Take the beginning of a chunk whose end has not arrived."""
        self._left = stop + 2 - start
        self._parse_open_chunk(data[start:])

    def _parse_open_chunk(self, data: bytes) -> int:
        """Take the rest of a chunk, and return where it ends."""
        left = self._left
        if left > 2 and data:
            self._pieces.append(data[: left - 2])
        # Of the line end after the chunk, all or only the second byte may be missing.
        tail = data[max(left - 2, 0) : left]
        if tail != _CRLF[max(2 - left, 0) :][: len(tail)]:
            raise FramingError("a chunk is longer than it says")
        self._left = max(left - len(data), 0)
        return min(left, len(data))

    def _keep_chunk_line(self, line: bytes) -> None:
        if b"\n" in line or not _may_become_chunk_line(line):
            raise FramingError("the size of a chunk is not valid")
        if len(line) > MAX_CHUNK_LINE_BYTES:
            raise FramingError("the size of a chunk is too long")
        self._rest = line

    def _count_extension(self, size: int) -> None:
        self._extension_bytes += size
        if size > MAX_CHUNK_LINE_BYTES or self._extension_bytes > MAX_EXTENSION_BYTES:
            raise FramingError("the extensions of chunks are too long")

    def _parse_trailers(self, data: bytes) -> None:
        if not data or data == b"\r":
            self._rest = data
            return
        if data.startswith(_CRLF):
            self._end()
            if len(data) > 2:
                self._parse_trailing(data)
            return
        end = self._find_head_end(data)
        if not end:
            self._rest = data
            return
        _read_fields(_lines(data[:end]))
        self._end()
        if end < len(data):
            self._parse_trailing(data)

    def _parse_trailing(self, data: bytes) -> None:
        # They would be read as the response to the next request, which may be another caller's.
        self.reusable = False

    def _end(self) -> None:
        self.ended = True
        self._parse = ResponseParser._parse_trailing


def _read_head(head: bytes) -> _Head:
    """Read a status line and headers."""
    first, *lines = _lines(head)
    line = _STATUS_LINE.fullmatch(first)
    if line is None:
        raise FramingError("the status line is not valid")
    status, fields = int(line[2]), _read_fields(lines)
    headers = dict(fields)
    if status < 200:
        return _Head(status, headers, reusable=True, is_chunked=False, length=None)
    reusable = line[1] == "1" and "close" not in headers.get("connection", "").lower()
    codings = [value for name, value in fields if name == "transfer-encoding"]
    lengths = {part.strip(" \t") for name, value in fields if name == "content-length" for part in value.split(",")}
    if len(lengths) > 1 or any(not _DIGITS.fullmatch(length) for length in lengths):
        raise FramingError("the content length is not valid")
    if codings and (lengths or codings[0].lower() != "chunked" or len(codings) > 1):
        raise FramingError("the transfer encoding is not valid")
    return _Head(status, MappingProxyType(headers), reusable, bool(codings), int(lengths.pop()) if lengths else None)


# A server sends the same head many times in a second, where it has no id for each of them.
_known_head = lru_cache(maxsize=64)(_read_head)


def _lines(head: bytes) -> list[str]:
    """Return the lines of headers or trailers, without the empty one at their end."""
    text = head.replace(_CRLF, b"\n")
    if text.translate(None, _TEXT):
        raise FramingError("control characters in the headers")
    return text[:-2].decode("latin-1").split("\n")


def _read_fields(lines: list[str]) -> list[tuple[str, str]]:
    """Return headers, with names in lower case."""
    if len(lines) > MAX_HEADERS:
        raise FramingError(f"more than {MAX_HEADERS} headers")
    fields: list[tuple[str, str]] = []
    for line in lines:
        name, colon, value = line.partition(":")
        # A line that begins with a blank would continue the one before, which servers must not send any more.
        if not colon or not name or name.encode("latin-1").translate(None, _TOKEN):
            raise FramingError("a header is not valid")
        fields.append((name.lower(), value.strip(" \t")))
    return fields


_CHUNK_LINE_START = re.compile(rb"[0-9A-Fa-f]{1,15}(?:[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*|))?\r?")


def _may_become_chunk_line(line: bytes) -> bool:
    """Return whether more bytes can complete a valid line, so that it is worth waiting for them."""
    return _CHUNK_LINE_START.fullmatch(line) is not None
