"""Read and check the prompts of a file."""

import codecs
import csv
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self, cast

import attrs

from sampling._json import bounded as bounded_json
from sampling._text import quoted

if TYPE_CHECKING:
    from _csv import Reader  # the module `csv` does not name the type of its readers

__all__ = ["BadLine", "Prompt", "Prompts"]

MAX_LINE_BYTES = 32 * 1024 * 1024
_PART_BYTES = 64 * 1024
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_MAX_SHOWN = 10


@attrs.frozen
class Prompt:
    """A prompt and its key."""

    line: int
    key: str
    text: str


@attrs.frozen
class BadLine:
    """A line that can't be read as a prompt."""

    line: int
    problem: str


class Prompts:
    """
    A repeatable iterable of the `(key, prompt)` pairs of a file.

    A line is a JSON object with a prompt and an optional key, or a JSON string. With `text`, the line is the prompt.
    A file whose name ends in .csv is a table with the names of the fields in its first row.
    The default key is the line number. Empty lines are skipped.
    """

    def __init__(self, path: Path, *, text: bool = False, key_field: str = "key", prompt_field: str = "prompt") -> None:
        self.name = "the standard input" if str(path) == "-" else str(path)
        self._file = _open(path)
        self._text = text
        self._is_csv = not text and path.suffix.lower() == ".csv"
        self._key_field = key_field
        self._prompt_field = prompt_field
        self._count = 0
        self.bad: list[BadLine] = []
        """The first bad lines."""

        self.bad_count = 0
        self._checked: tuple[int, int] | None = None
        self.has_changed = False
        """Whether the file was changed between `check` and the end of an iteration."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def check(self) -> Iterator[Prompt]:
        """Yield all prompts, count them and collect the bad lines."""
        self._count, self.bad_count = 0, 0
        self.bad.clear()
        self._checked = self._version()
        for read in self._read():
            if isinstance(read, Prompt):
                self._count += 1
                yield read
                continue
            self.bad_count += 1
            if len(self.bad) < _MAX_SHOWN:
                self.bad.append(read)

    def __len__(self) -> int:
        """Return the number of prompts that `check` counted."""
        return self._count

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for read in self._read():
            if isinstance(read, Prompt):
                yield read.key, read.text
        self.has_changed = self._checked not in (None, self._version())

    def _version(self) -> tuple[int, int]:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns

    def _read(self) -> Iterator[Prompt | BadLine]:
        self._file.seek(0)
        return self._read_csv() if self._is_csv else self._read_lines()

    def _read_csv(self) -> Iterator[Prompt | BadLine]:
        # Bytes that are not UTF-8 become lone surrogates, so that the rows after them can still be read.
        text = io.TextIOWrapper(self._file, "utf-8-sig", errors="surrogateescape", newline="")
        csv.field_size_limit(MAX_LINE_BYTES)
        try:
            # A spreadsheet separates with semicolons where numbers have a decimal comma.
            delimiter = max(",;\t", key=text.readline().count)
            text.seek(0)
            yield from self._read_table(csv.reader(text, strict=True, delimiter=delimiter))
        finally:
            text.detach()

    def _read_table(self, table: "Reader") -> Iterator[Prompt | BadLine]:
        rows = _rows(table)
        names = next(rows, list[str]())
        if isinstance(names, BadLine):
            yield names
            return
        if not _is_utf_8(names):
            yield BadLine(1, _NOT_UTF_8)
            return
        if twice := [name for name in (self._prompt_field, self._key_field) if names.count(name) > 1]:
            yield BadLine(1, f'two columns "{twice[0]}": rename or delete one')
            return
        for row in rows:
            if isinstance(row, BadLine):
                yield row
            elif any(row):
                yield self._from_row(table.line_num, names, row)

    def _from_row(self, line: int, names: list[str], row: list[str]) -> Prompt | BadLine:
        if not _is_utf_8(row):
            return BadLine(line, _NOT_UTF_8)
        if len(row) > len(names):
            return BadLine(line, f"{len(row)} fields, but the first row has {len(names)}: quote a text with a comma")
        try:
            return self._from_object(line, dict(zip(names, row, strict=False)))
        except ValueError as error:
            return BadLine(line, str(error))

    def _read_lines(self) -> Iterator[Prompt | BadLine]:
        number = 0
        # A limit, because a file without line breaks would be read into memory as a whole.
        while line := self._file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                yield BadLine(number, f"longer than {MAX_LINE_BYTES // 2**20} MiB")
                self._skip_rest_of_line()
                continue
            try:
                # The first line may begin with a byte order mark.
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip("\r\n" if self._text else None)
                if text.strip():
                    yield self._prompt(number, text)
            except UnicodeDecodeError as error:
                if number == 1 and line.startswith(_UTF_16):
                    # Its line breaks are other bytes, so every line would be reported.
                    yield BadLine(number, "UTF-16, as some tools on Windows write it: save the file as UTF-8")
                    return
                yield BadLine(number, f"not UTF-8 at byte {error.start}")
            except ValueError as error:
                yield BadLine(number, str(error))

    def _skip_rest_of_line(self) -> None:
        while (more := self._file.readline(MAX_LINE_BYTES)) and not more.endswith(b"\n"):
            pass

    def _prompt(self, number: int, text: str) -> Prompt:
        if self._text:
            return Prompt(number, str(number), text)
        try:
            read = bounded_json.loads(text)
        except ValueError as error:
            raise ValueError(f"not JSON: {error}") from None
        if isinstance(read, str):
            return Prompt(number, str(number), _prompt_text("the prompt", read))
        if not isinstance(read, dict):
            advice = f": `jq -c '.[]' {self.name} > prompts.jsonl` writes one line for each" * isinstance(read, list)
            raise ValueError(f"neither an object nor a string, but {_kind(read)}{advice}")  # noqa: TRY004 - the file is wrong
        return self._from_object(number, cast("dict[str, Any]", read))

    def _from_object(self, number: int, read: dict[str, Any]) -> Prompt:
        if self._prompt_field not in read:
            found = ", ".join(quoted(name, 40) for name in list(read)[:5]) or "nothing"
            raise ValueError(f'no field "{self._prompt_field}"; found {found}')
        key = read.get(self._key_field, number)
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise ValueError(f'the field "{self._key_field}" must be a string or a whole number, and is {_kind(key)}')  # noqa: TRY004
        if key == "":
            raise ValueError(f'the field "{self._key_field}" is empty')
        _check_encodable(f'the field "{self._key_field}"', str(key))
        return Prompt(number, str(key), _prompt_text(f'the field "{self._prompt_field}"', read[self._prompt_field]))


_NOT_UTF_8 = "not UTF-8: save the file as CSV in UTF-8"


def _rows(table: "Reader") -> Iterator[list[str] | BadLine]:
    """Yield the rows of a table. A row that can't be read does not end it."""
    while True:
        line = table.line_num + 1
        try:
            yield next(table)
        except StopIteration:
            return
        except csv.Error as error:
            # A quote that is not closed takes the lines after it with it.
            end = f" up to line {table.line_num}" if table.line_num > line else ""
            yield BadLine(line, f"not CSV{end}: {error}")


def _is_utf_8(row: list[str]) -> bool:
    try:
        "".join(row).encode()
    except UnicodeEncodeError:
        return False
    return True


def _prompt_text(name: str, text: object) -> str:
    if not isinstance(text, str):
        raise ValueError(f"{name} must be a string, and is {_kind(text)}")  # noqa: TRY004
    if not text.strip():
        raise ValueError(f"{name} is empty")
    _check_encodable(name, text)
    return text


def _check_encodable(name: str, text: str) -> None:
    """Raise ValueError for a lone surrogate."""
    # JSON can escape a lone surrogate, but UTF-8 can't encode it, so the request would fail.
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} has half a character (a lone surrogate) at {error.start}") from None


def _kind(value: object) -> str:
    kinds: dict[type, str] = {dict: "an object", list: "an array", str: "a string", type(None): "null"}
    return kinds.get(type(value), "true or false" if isinstance(value, bool) else "a number")


def _open(path: Path) -> IO[bytes]:
    if str(path) == "-":
        return _spooled(cast("io.BufferedReader", sys.stdin.buffer))
    try:
        file = path.open("rb")
    except OSError as error:
        raise ValueError(f"can't read {path}: {error.strerror}") from None
    if file.seekable():
        return file
    with file:
        return _spooled(file)


def _spooled(pipe: io.BufferedReader) -> IO[bytes]:
    """Copy a pipe, such as stdin or `<(command)`, to a file. It is read twice, and may be too long for memory."""
    spool: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the prompts
    # One read of the system at a time: the others go on after the end, so that Ctrl-D would have to be typed twice.
    for part in iter(partial(pipe.read1, _PART_BYTES), b""):
        spool.write(part)
    # What is still in the buffer would look like a change of the file later.
    spool.flush()
    return spool
