"""
The file format of `Recorded` and `Replayed`: one line of JSON per request.

The first line names the format and its version. The other lines are in the order in which the requests ended.
Each holds the request, its call and sample, its times (in seconds since the first request of the call),
and its outcome: an answer, an error, or a cancellation.
Reading a file runs and imports nothing from it. Errors are created from a fixed list of types.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, cast, get_args

import attrs

from sampling import errors
from sampling._arguments import check_int, check_number, check_str
from sampling._json import bounded as bounded_json
from sampling._redaction import Redactor
from sampling._serialization.messages import canonical, digest, dump_generation, load_generation, plain_request
from sampling.errors import BackendError, FileRefused
from sampling.messages import Generation, Request
from sampling.usage import Usage

__all__ = ["Ending", "Entry", "append", "create", "read", "recordable_request", "remove_partial_line"]

_HEADER = {"format": "sampling cassette", "version": 1}
_LONGEST_LINE_BYTES = 64 * 2**20
"""A bound on the memory that reading a crafted file can take."""

Ending = Literal["answer", "error", "cut", "cancelled"]
"""The end of a request. "cut" is a stream that its receiver stopped."""

_ERRORS: dict[str, type[BackendError]] = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, BackendError) and kind is not errors.CassetteMiss
}
_ERROR_DETAILS = {"retry_after_s": (int, float), "status": (int,), "maybe_billed": (bool,), "partial_text": (str,)}

_redactor = Redactor()


@attrs.frozen(kw_only=True)
class Entry:
    """A request and its outcome."""

    call: int | None
    """The number of its call, in the order in which calls began, or None outside of any call."""

    subsample: int
    attempt: int
    request: dict[str, Any]
    asked_after: int
    """The number of requests of the call that had ended when this one was sent."""

    asked_s: float
    ended_s: float
    ending: Ending
    generation: Generation | None = None
    error: Exception | None = None
    used: Usage | None = None
    """The usage that the backend reported, if the request ended without an answer."""

    pieces: tuple[str, ...] | None = None
    """The pieces of the streamed text, or None if it was not streamed."""


_FIELDS = attrs.fields_dict(Entry).keys()


def recordable_request(request: Request) -> dict[str, Any]:
    """Return a request as JSON values, with digests in place of options that may be secret."""
    content = plain_request(request)
    extra = content["options"].get("extra")
    if extra is not None:
        content["options"]["extra"] = {name: _hide_value(value) for name, value in extra.items()}
    return content


def _hide_value(value: object) -> object:
    # `extra` is passed to the server as it is and may hold headers and keys. A number is neither.
    return value if value is None or isinstance(value, bool | int | float) else f"sha256:{digest(value)[:16]}"


def create(path: Path) -> None:
    """Create a new file. An existing one is not overwritten."""
    with path.open("x", encoding="ascii") as file:
        file.write(f"{canonical(_HEADER)}\n")


def append(path: Path, entry: Entry) -> None:
    """Append one line atomically. Earlier lines stay intact whatever happens."""
    line = f"{canonical(_dump(entry))}\n".encode("ascii")
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        try:
            # One unbuffered write per line, so that lines of several processes don't mix.
            # Only a full disk writes a part of it.
            while line:
                line = line[file.write(line) :]
        except OSError:
            file.truncate(size)
            raise


def read(path: Path) -> tuple[Entry, ...]:
    """Read a whole file, or raise `FileRefused` with the invalid line."""
    entries: list[Entry] = []
    for number, line in enumerate(_lines(path), 1):
        try:
            data = bounded_json.loads(line.decode("ascii"))
            if number == 1:
                _check_header(data)
            else:
                entries.append(_load(data))
        except (ValueError, TypeError, KeyError) as error:
            raise FileRefused(f"{path}, line {number}: {type(error).__name__}: {error}") from error
    return tuple(entries)


def remove_partial_line(path: Path) -> None:
    """Remove an incomplete last line, which a crash may leave behind."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole != len(data):
        os.truncate(path, whole)


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        first = True
        while line := file.readline(_LONGEST_LINE_BYTES):
            if line.endswith(b"\n"):
                yield line
            elif first or len(line) == _LONGEST_LINE_BYTES:
                raise FileRefused(f"{path} is not a cassette")
            first = False
            # An incomplete last line is skipped: the process died while it was written.
        if first:
            raise FileRefused(f"{path} is empty and not a cassette")


def _check_header(data: object) -> None:
    if data != _HEADER:
        raise ValueError(f"not the first line of a cassette of version {_HEADER['version']}")


def _dump(entry: Entry) -> dict[str, Any]:
    line = attrs.asdict(entry, recurse=False, filter=lambda _, value: value is not None)
    if entry.generation is not None:
        line["generation"] = dump_generation(entry.generation)
    if entry.error is not None:
        line["error"] = _dump_error(entry.error)
    if entry.used is not None:
        line["used"] = attrs.asdict(entry.used)
    return line


def _load(data: object) -> Entry:
    if not isinstance(data, dict):
        raise ValueError("not an entry")  # noqa: TRY004 - it is data that is wrong, not a caller's argument
    line = cast("dict[str, Any]", data)
    _check(line)
    used, pieces = line.get("used"), line.get("pieces")
    return Entry(
        call=line.get("call"),
        subsample=line["subsample"],
        attempt=line["attempt"],
        request=line["request"],
        asked_after=line["asked_after"],
        asked_s=line["asked_s"],
        ended_s=line["ended_s"],
        ending=line["ending"],
        generation=load_generation(line["generation"]) if line["ending"] == "answer" else None,
        error=_load_error(line["error"]) if line["ending"] == "error" else None,
        used=None if used is None else Usage(**used),
        pieces=None if pieces is None else tuple(check_str("a piece", piece) for piece in pieces),
    )


def _check(line: dict[str, Any]) -> None:
    if not line.keys() <= _FIELDS:
        raise ValueError("an entry with unknown fields")
    if line["ending"] not in get_args(Ending):
        raise ValueError("an unknown ending")
    for name in ("subsample", "attempt", "asked_after", *(("call",) if "call" in line else ())):
        check_int(name, line[name], least=0)
    for name in ("asked_s", "ended_s"):
        check_number(name, line[name], least=0)
    request = line["request"]
    if not isinstance(request["messages"], list) or not isinstance(request["options"], dict):
        raise ValueError("a request without messages or options")  # noqa: TRY004


def _dump_error(error: Exception) -> dict[str, Any]:
    kind = type(error).__name__
    if _ERRORS.get(kind) is not type(error):
        # The message of an unknown error type may hold secrets, so only the name of the type is recorded.
        return {"type": "BackendError", "message": f"the recorded backend raised {kind}"}
    details = {name: getattr(error, name, None) for name in _ERROR_DETAILS}
    known = {name: value for name, value in details.items() if value is not None}
    return {"type": kind, "message": _redactor.redact(str(error)), **known}


def _load_error(data: dict[str, Any]) -> BackendError:
    details = dict(data)
    kind = _ERRORS.get(details.pop("type"))
    if kind is None:
        raise ValueError("an error of an unknown type")
    error = kind(check_str("message", details.pop("message")))
    for name, value in details.items():
        if not isinstance(value, _ERROR_DETAILS[name]):
            raise ValueError(f"{name} is of the wrong type")  # noqa: TRY004
        setattr(error, name, value)
    return error
