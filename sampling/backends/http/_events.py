"""
Read the events of a stream, without parsing the JSON of those that differ only in their text.

A server sends thousands of chunks that are equal except for a few bytes. The first is parsed, and the bytes around
its text become a template. Chunks that match it are cut at these bytes. All others are parsed.

This is correct because in an event without a backslash, strings have no escapes. So if its text occurs in it exactly
once between quotes, that is where the text was read from, and any other string in that place is the text of its event.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, takewhile

import attrs

from sampling.backends.http._sse import EventParser
from sampling.backends.http._streamed import Plain, StreamedResponse
from sampling.errors import ResponseTooLarge

__all__ = ["EventReader"]

_WINDOW = 16 * 1024
"""
The most bytes that are compared with a template at once.

It bounds the time that is lost if few of them fit, and the size of an event that is not parsed.
"""

_FREE_LESSONS = 4
_TEXTS_PER_LESSON = 8
"""A template that fits few chunks costs more than it saves, so that only some are made for nothing."""

_MAX_DIGITS = 16

# A quote and a backslash have a meaning in JSON, and control characters are not allowed in it.
_SPECIAL = re.compile(r'["\\\x00-\x1f]')

_JSON = json.JSONDecoder()


class EventReader:
    """Feeds the events of a response to its reader, and the pieces of its text to a receiver."""

    __slots__ = (
        "_answer",
        "_end",
        "_left",
        "_lessons",
        "_max_bytes",
        "_parser",
        "_receive",
        "_template",
        "_window",
        "texts_without_json",
    )

    def __init__(
        self,
        answer: StreamedResponse,
        max_event_bytes: int,
        receive: Callable[[str], None] | None = None,
        *,
        max_bytes: int = sys.maxsize,
    ) -> None:
        self._answer = answer
        self._max_bytes = max_bytes
        self._left = max_bytes
        self._receive = receive
        self._parser = EventParser(max_event_bytes)
        self._window = min(_WINDOW, max_event_bytes)
        self._end = b""
        """The bytes at the end of every event: two line endings."""

        self._template: _Template | None = None
        self._lessons = 0
        self.texts_without_json = 0
        """The number of texts that were read with a template."""

    def feed(self, data: bytes) -> None:
        """Read the next bytes. None at all are the end of the stream."""
        self._left -= len(data)
        if self._left < 0:
            raise ResponseTooLarge(f"the response has more than {self._max_bytes:,} bytes")
        if not data:
            self._add_all(self._parser.close())
            return
        position, answer = 0, self._answer
        while position < len(data) and not answer.done:
            after = self._read_like_template(data, position)
            position = self._read_with_care(data, position) if after == position else after

    def skim(self, data: bytes) -> bytes:
        """Read the events that fit the template, and return the bytes that follow. It raises nothing."""
        end = self._read_like_template(data, 0) if len(data) <= self._left else 0
        self._left -= end
        return data[end:]

    # With care.

    def _read_with_care(self, data: bytes, start: int) -> int:
        """Read the bytes up to the end of the next event, and return where that is."""
        if not self._end:
            self._end = b"\r\n\r\n" if b"\r\n" in data else b"\n\n"
        found = data.find(self._end, start)
        end = len(data) if found < 0 else found + len(self._end)
        raw = data[start:end]
        pieces_before = self._answer.pieces
        event = self._parser.whole_event(raw)
        if event is None:
            is_whole = self._add_lines(raw) and found >= 0
        else:
            is_whole = True
            self._pass_on(self._answer.add(event))
        # Only an event that adds a piece can be a template.
        if is_whole and self._answer.pieces != pieces_before and self._may_learn():
            self._learn(raw)
        return end

    def _add_lines(self, raw: bytes) -> bool:
        """Read bytes that are more or less than one line, and return whether they are exactly one event."""
        was_between = self._parser.is_between_events
        events = self._add_all(self._parser.events(raw))
        return was_between and events == 1 and self._parser.is_between_events

    def _add_all(self, events: Iterable[str]) -> int:
        """Read events up to the last one of the answer, and return how many."""
        count = 0
        for event in events:
            count += 1
            self._pass_on(self._answer.add(event))
            if self._answer.done:
                break
        return count

    def _pass_on(self, piece: str) -> None:
        if piece and self._receive is not None:
            self._receive(piece)

    # With a template.

    def _may_learn(self) -> bool:
        return self.texts_without_json >= _TEXTS_PER_LESSON * (self._lessons - _FREE_LESSONS)

    def _learn(self, raw: bytes) -> None:
        plain = self._answer.plain(self._answer.chunk)
        if plain is None:
            return
        self._lessons += 1
        if len(raw) <= self._window:
            self._template = _template(raw, plain, self._answer.varying) or self._template

    def _read_like_template(self, data: bytes, start: int) -> int:
        """Read the events that fit the template, and return where they end."""
        template = self._template
        if template is None or not data.startswith(template.head, start):
            return start
        if not self._parser.is_between_events or not self._answer.accepts(template.plain):
            return start
        found, sizes = template.cut(data, start, start + self._window)
        texts = _decoded(found)
        if not texts:
            return start
        self.texts_without_json += len(texts)
        if self._receive is None:
            self._answer.repeat(template.plain, texts)
        else:
            for text in texts:
                # One by one, because the receiver may interrupt.
                self._pass_on(self._answer.repeat(template.plain, [text]))
        return start + sum(sizes[: len(texts)])


@attrs.define
class _Varying:
    """A value without meaning: letters and digits in quotes, or a number."""

    is_number: bool
    after: bytes
    """What follows the value, up to the next one or to the end."""

    def fits(self, value: bytes) -> bool:
        """Return True if the bytes are such a value."""
        if not self.is_number:
            return value.isalnum()
        return value.isdigit() and len(value) < _MAX_DIGITS and (len(value) == 1 or not value.startswith(b"0"))


@attrs.define
class _Template:
    """The bytes of an event around its text, and around values without meaning."""

    plain: Plain
    head: bytes
    after: bytes
    """What follows the text, up to the first of the values or to the end."""

    varying: tuple[_Varying, ...]
    between: bytes = attrs.field(init=False)
    """What is between two texts, if there are no such values."""

    def __attrs_post_init__(self) -> None:
        self.between = self.after + self.head

    def cut(self, data: bytes, start: int, limit: int) -> tuple[list[bytes], list[int]]:
        """Return the encoded texts of the events from here on that fit, and the size of each of the events."""
        return self._cut_varying(data, start, limit) if self.varying else self._cut_equal(data, start, limit)

    def _cut_equal(self, data: bytes, start: int, limit: int) -> tuple[list[bytes], list[int]]:
        # A quote begins what follows the text. So if one of them reaches too far, it is no string of JSON.
        texts = data[start + len(self.head) : limit].split(self.between)
        last, found, _ = texts.pop().partition(self.after)
        if found:
            texts.append(last)
        return texts, list(map(len(self.between).__add__, map(len, texts)))

    def _cut_varying(self, data: bytes, start: int, limit: int) -> tuple[list[bytes], list[int]]:
        texts: list[bytes] = []
        sizes: list[int] = []
        # The first of the pieces is empty, because the data begins with the head.
        for piece in data[start:limit].split(self.head)[1:]:
            text, found, following = piece.partition(self.after)
            rest = self._without_varying(following)
            if not found or rest is None:
                break
            texts.append(text)
            sizes.append(len(self.head) + len(piece) - len(rest))
            if rest:
                break
        return texts, sizes

    def _without_varying(self, rest: bytes) -> bytes | None:
        """Return what follows the event, or None if it does not fit."""
        for each in self.varying:
            value, found, rest = rest.partition(each.after)
            if not found or not each.fits(value):
                return None
        return rest


def _template(raw: bytes, plain: Plain, varying: re.Pattern[bytes] | None) -> _Template | None:
    """Create a template from an event, if it is certain where its text is."""
    # A character that stands for invalid bytes may be one of several.
    if b"\\" in raw or "\ufffd" in plain.text:
        return None
    encoded = f'"{plain.text}"'.encode()
    place = raw.find(encoded)
    # Not `count`, which would miss one that overlaps, as in `"content":":"`.
    if place < 0 or raw.find(encoded, place + 1) >= 0:
        return None
    end = place + len(encoded) - 1
    holes = [] if varying is None else [hole for hole in varying.finditer(raw, end) if _is_certain(raw, plain, hole)]
    edges = [end, *[edge for hole in holes for edge in hole.span(2)], len(raw)]
    literals = [raw[start:stop] for start, stop in zip(edges[::2], edges[1::2], strict=True)]
    after = [_Varying(not before.endswith(b'"'), literal) for before, literal in pairwise(literals)]
    return _Template(plain, raw[: place + 1], literals[0], tuple(after))


def _is_certain(raw: bytes, plain: Plain, hole: re.Match[bytes]) -> bool:
    """Return whether a field belongs to the chunk itself, and not to a nested object."""
    name, value = hole[1], hole[2].decode()
    return raw.count(b'"%b"' % name) == 1 and str(plain.chunk.get(name.decode())) == value


def _decoded(found: Sequence[bytes]) -> list[str]:
    """Decode JSON strings, up to the first that is invalid or empty."""
    try:
        # Decode all at once. Line ends separate them, so that no character spans two texts.
        texts = b"\n".join(found).decode().split("\n")
    except UnicodeDecodeError:
        texts = []
    if len(texts) != len(found):
        return list(takewhile(bool, [_string(encoded) for encoded in found]))
    if _SPECIAL.search("".join(texts)):
        texts = [_unescaped(text) if _SPECIAL.search(text) else text for text in texts]
    return texts if all(texts) else list(takewhile(bool, texts))


def _string(encoded: bytes) -> str:
    """Return a string of JSON without its quotes as a text, or nothing if it is none."""
    try:
        return _unescaped(encoded.decode())
    except UnicodeDecodeError:
        return ""


def _unescaped(encoded: str) -> str:
    """Return a string of JSON without its quotes as a text, or nothing if it is none."""
    quoted = f'"{encoded}"'
    try:
        text, end = _JSON.raw_decode(quoted)
    except ValueError:
        return ""
    return str(text) if end == len(quoted) else ""
