"""Files of finished steps, to resume a search."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from sampling._json.bounded import loads
from sampling.load.capacity._answer import Step, csv_text

__all__ = ["StepCsv", "StepJournal"]

_SCHEMA = "sampling.capacity-journal/1"


class StepJournal:
    """
    A journal with one line of JSON per step.

    Its header has the settings.
    An incomplete last line, left by a crash, is removed before anything is appended.
    """

    def __init__(self, path: str | Path, settings: Mapping[str, Any]) -> None:
        self._path = Path(path)
        # As they are read from a file, to compare them: JSON has no tuples.
        self._settings = json.loads(json.dumps(settings))

    def read(self) -> tuple[Step, ...]:
        """Return the recorded steps. Raise `ValueError` if they belong to another search."""
        first_line = json.dumps({"schema": _SCHEMA, "settings": self._settings}) + "\n"
        try:
            text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
        except UnicodeDecodeError:
            raise self._foreign() from None
        # Also if a crash left only a part of the header.
        if first_line.startswith(text):
            _append(self._path, first_line[len(text) :])
            return ()
        whole = text[: text.rfind("\n") + 1]
        header, *lines = self._parse(whole)
        self._check(header)
        if whole != text:
            _replace(self._path, whole)
        return tuple(self._step(line, number) for number, line in enumerate(lines, 2))

    def _parse(self, text: str) -> list[Any]:
        try:
            return [loads(line) for line in text.splitlines()] or [None]
        except ValueError:
            raise self._foreign() from None

    def _step(self, line: Any, number: int) -> Step:
        try:
            return Step.from_dict(line)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(
                f"line {number} of the journal {self._path.name} is damaged ({type(error).__name__}: {error}): "
                "remove it, or use another file"
            ) from None

    def _foreign(self) -> ValueError:
        return ValueError(f"{self._path.name} is not the journal of a capacity search: use another file")

    def _check(self, header: Any) -> None:
        if not isinstance(header, Mapping) or cast("Mapping[str, Any]", header).get("schema") != _SCHEMA:
            raise self._foreign()
        theirs: Any = cast("Mapping[str, Any]", header).get("settings")
        if not isinstance(theirs, dict):
            raise self._foreign()
        earlier = cast("dict[str, Any]", theirs)
        was, now = _differences(earlier, self._settings)
        if was or now:
            shown = "; ".join(f"{name} was {was.get(name)!r} and is {now.get(name)!r}" for name in sorted({*was, *now}))
            raise ValueError(f"journal {self._path.name} is of another search: {shown}; use another file")

    def add(self, step: Step) -> None:
        """Append a step and sync it to disk."""
        _append(self._path, json.dumps(step.to_dict(), allow_nan=False) + "\n")


class StepCsv:
    """A CSV file with one row per step."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def start(self, steps: Sequence[Step]) -> None:
        """Rewrite the file with the steps so far."""
        _replace(self._path, csv_text(steps))

    def add(self, step: Step) -> None:
        """Append a step and sync it to disk."""
        _append(self._path, csv_text([step], header=False))


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parts of two settings that differ. Parts of nested settings that are equal are left out, too."""
    was: dict[str, Any] = {}
    now: dict[str, Any] = {}
    for name in {*before, *after}:
        one, other = before.get(name), after.get(name)
        if one == other:
            continue
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            one, other = _differences(cast("Mapping[str, Any]", one), cast("Mapping[str, Any]", other))
        was[name], now[name] = one, other
    return was, now


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f"{path.name}.new")
    beside.unlink(missing_ok=True)
    _append(beside, text)
    beside.replace(path)
