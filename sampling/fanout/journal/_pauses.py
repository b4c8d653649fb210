"""The pauses of a run, as notes in its journal."""

import json
from typing import Literal, TypeAlias

import attrs

from sampling._json import bounded as bounded_json
from sampling.fanout.engines import Note

__all__ = ["PAUSE", "Pause", "PauseEnd"]

PAUSE = "pause"
"""The kind of the notes on pauses."""

PauseEnd: TypeAlias = Literal["answered", "grace spent"]
"""The end of a pause: the backend answered, or its errors count again."""


@attrs.frozen
class Pause:
    """A time in which a run waited for its backend."""

    number: int
    began_s: float
    """The wall-clock time, as in `time.time`."""

    error_type: str
    held: int
    """The number of items that waited when it began."""

    ended_s: float | None = None
    ending: PauseEnd | None = None

    def end(self, now_s: float, ending: PauseEnd) -> "Pause":
        """Return the pause with its end."""
        return attrs.evolve(self, ended_s=now_s, ending=ending)

    def to_note(self, process: int) -> Note:
        """Return the note of a process, which replaces the one from the beginning of the pause."""
        value = json.dumps([self.number, self.began_s, self.error_type, self.held, self.ended_s, self.ending])
        return Note(PAUSE, f"{process}:{self.number}", None, value)

    @classmethod
    def from_note(cls, note: Note) -> tuple[int, "Pause"]:
        """Return the number of the process, and its pause."""
        return int(note.name.partition(":")[0]), cls(*bounded_json.loads(note.value))
