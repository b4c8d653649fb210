"""
The file behind `Recorded` and `Replayed`: one line of JSON for each request, in the order in which they ended.

The first line names the format and its version. Every other line says what was asked, for which sample of which call,
when (in seconds since that call's first request) and what came of it: an answer, an error, or a cancellation.
Nothing in it is run or imported when it is read: errors are made from a fixed list of types.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, cast, get_args

import attrs

from sampling import errors
from sampling._arguments import check_int, check_number, check_str
from sampling._json import bounded as bounded_json
from sampling._message_json import canonical, digest, dump_generation, load_generation, plain_request
from sampling._redaction import Redactor
from sampling.errors import BackendError, FileRefused
from sampling.messages import Generation, Request
from sampling.usage import Usage

__all__ = ["Ending", "Entry", "append", "create", "mend", "question_of", "read"]

_HEADER = {"format": "sampling cassette", "version": 1}
_LONGEST_LINE_BYTES = 64 * 2**20

Ending = Literal["answer", "error", "cut", "cancelled"]
"""How a request ended; "cut" is a stream whose receiver had seen enough."""

_ERRORS: dict[str, type[BackendError]] = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, BackendError) and kind is not errors.CassetteMiss
}
_ERROR_DETAILS = {"retry_after_s": (int, float), "status": (int,), "maybe_billed": (bool,), "partial_text": (str,)}

_redactor = Redactor()


@attrs.frozen(kw_only=True)
class Entry:
    """One request, and what came of it."""

    call: int | None
    """Which call it belongs to, numbered in the order in which they began; None if it was made outside of any."""

    subsample: int
    attempt: int
    request: dict[str, Any]
    asked_after: int
    """How many other requests of the call had ended when it was asked."""

    asked_s: float
    ended_s: float
    ending: Ending
    generation: Generation | None = None
    error: Exception | None = None
    used: Usage | None = None
    """What the backend had reported by then, if it ended without an answer."""

    pieces: tuple[str, ...] | None = None
    """The text as it was streamed, if it was."""


_FIELDS = attrs.fields_dict(Entry).keys()


def question_of(request: Request) -> dict[str, Any]:
    """Return what was asked, fit to be written down: of options that may be secret, only digests."""
    question = plain_request(request)
    extra = question["options"].get("extra")
    if extra is not None:
        question["options"]["extra"] = {name: _harmless(value) for name, value in extra.items()}
    return question


def _harmless(value: object) -> object:
    # Headers and keys are among the options that are passed on as they are, and a number is none.
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
            # In one go, so that lines of several processes don't mix. Only a full disk takes a part of it.
            while line:
                line = line[file.write(line) :]
        except OSError:
            file.truncate(size)
            raise


def read(path: Path) -> tuple[Entry, ...]:
    """Read a whole file, or raise `FileRefused` with the line that is not valid."""
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


def mend(path: Path) -> None:
    """Cut off what a crash left of a line that was being written."""
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
            # What has no end was being written when the process died: it never was an entry.
        if first:
            raise FileRefused(f"{path} is empty, and no cassette")


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
        # Of a type that is not ours, nothing but its name is kept: who knows what it says.
        return {"type": "BackendError", "message": f"the recorded backend raised {kind}"}
    details = {name: getattr(error, name, None) for name in _ERROR_DETAILS}
    told = {name: value for name, value in details.items() if value is not None}
    return {"type": kind, "message": _redactor.redact(str(error)), **told}


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
