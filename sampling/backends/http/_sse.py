"""An incremental parser for server-sent events."""

from collections.abc import Iterable, Iterator

from sampling.errors import ResponseTooLarge

__all__ = ["EventParser"]

_BOM = b"\xef\xbb\xbf"
_DATA = b"data: "


class EventParser:
    """
    Parses the bytes of an event stream into the data of its events.

    It follows the standard:

    - Lines end in LF, CR or CRLF, even if a chunk ends between CR and LF.
    - A byte order mark at the beginning is skipped.
    - Comments and unknown fields are ignored.
    - The data lines of one event are joined with LF.
    - Bytes that are not UTF-8 become U+FFFD.

    The only error is `ResponseTooLarge`, for an event of more than `max_event_bytes`.
    The time is linear in the number of bytes, however they are split into chunks.
    """

    __slots__ = ("_after_cr", "_at_start", "_data", "_data_bytes", "_line", "_max_event_bytes")

    def __init__(self, max_event_bytes: int) -> None:
        self._max_event_bytes = max_event_bytes
        self._line = bytearray()
        """The current, incomplete line."""

        self._data: list[bytes] = []
        self._data_bytes = 0
        self._after_cr = False
        self._at_start = True

    @property
    def is_between_events(self) -> bool:
        """True if no part of an incomplete event has been fed."""
        return not (self._line or self._data or self._after_cr or self._at_start)

    def whole_event(self, chunk: bytes) -> str | None:
        """Parse bytes that are one event of one line, as most are. Return None, and do nothing, if they are not."""
        if not chunk.startswith(_DATA) or not chunk.endswith(b"\n\n") or len(chunk) > self._max_event_bytes:
            return None
        lines = chunk.splitlines()
        if len(lines) != 2 or self._line or self._data or self._after_cr:
            return None
        self._at_start = False
        return lines[0][len(_DATA) :].decode("utf-8", "replace")

    def feed(self, chunk: bytes) -> list[str]:
        """Parse the next bytes and return the data of the events they complete."""
        return list(self.events(chunk))

    def events(self, chunk: bytes) -> Iterable[str]:
        """Parse the next bytes like `feed`, but yield one event at a time, so that those before an error count."""
        event = self.whole_event(chunk)
        return self._parse(chunk) if event is None else (event,)

    def _parse(self, chunk: bytes) -> Iterator[str]:
        if self._after_cr and chunk:
            # The CR at the end of the last chunk ended its line, so this LF belongs to it.
            self._after_cr = False
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
        if b"\n" not in chunk and b"\r" not in chunk:
            self._line += chunk
        else:
            yield from self._events(self._complete_lines(chunk))
        self._check_size(len(self._line))

    def close(self) -> list[str]:
        """Return the data of an event that lacks only the empty line at the end of the stream."""
        self._line.clear()
        return list(self._events([b""]))

    def _complete_lines(self, chunk: bytes) -> list[bytes]:
        self._line += chunk
        lines = bytes(self._line).splitlines()
        self._line.clear()
        if chunk.endswith(b"\r"):
            self._after_cr = True
        elif not chunk.endswith(b"\n"):
            self._line += lines.pop()
        if self._at_start and lines:
            self._at_start = False
            lines[0] = lines[0].removeprefix(_BOM)
        return lines

    def _events(self, lines: Iterable[bytes]) -> Iterator[str]:
        for line in lines:
            if line:
                self._take(line)
            elif self._data:
                event = b"\n".join(self._data).decode("utf-8", "replace")
                self._data = []
                self._data_bytes = 0
                yield event

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._data_bytes += len(value) + 1
            self._check_size(self._data_bytes)

    def _check_size(self, size: int) -> None:
        if size > self._max_event_bytes:
            raise ResponseTooLarge(f"an event of the stream has more than {self._max_event_bytes:,} bytes")
