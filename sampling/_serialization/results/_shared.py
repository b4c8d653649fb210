"""Parts of the formats of results and journals that are the same."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar, cast

import attrs

from sampling.messages import Action, Attempt, Context, Generation, Message
from sampling.options import Options
from sampling.results import Slice

__all__ = [
    "FORMAT",
    "VERSION",
    "MessageTable",
    "PlainSlice",
    "index_of",
    "parse_again",
    "place_of",
    "restore_attempt",
]

T = TypeVar("T")

FORMAT: Final = "sampling.result"
VERSION: Final = 1
"""The version of the format. A change that an older reader would misread raises it."""


@attrs.frozen(slots=False, repr=False)
class PlainSlice(Slice[T]):
    """A slice that was read without its action. Its value is what JSON holds of a value of another type."""

    value_type: str = attrs.field(kw_only=True)


class MessageTable:
    """Numbers for messages. A record has each message once, and refers to it by its number."""

    def __init__(self, known: Sequence[Message] = ()) -> None:
        # The first of equal messages keeps its number.
        self._numbers = {message: number for number, message in reversed(list(enumerate(known)))}
        self._known_count = len(known)
        self.new: list[Message] = []

    def numbers(self, messages: Iterable[Message]) -> list[int]:
        """Return the numbers of messages, and add those that are new."""
        return [self._number(message) for message in messages]

    def _number(self, message: Message) -> int:
        number = self._numbers.get(message)
        if number is None:
            number = self._numbers[message] = self._known_count + len(self.new)
            self.new.append(message)
        return number


def index_of(error: Exception, problems: list[Exception]) -> int:
    """Return the place of an error in a list, and append it if it is not there."""
    for index, known in enumerate(problems):
        if known is error:
            return index
    problems.append(error)
    return len(problems) - 1


def place_of(best: Slice[Any] | None, attempts: Sequence[Slice[Any]]) -> int | None:
    """Return the index of the answer among the attempts. Iterations are not unique in an escalation."""
    if best is None:
        return None
    places = (place for place, one in enumerate(attempts) if one is best or one.iteration_id == best.iteration_id)
    return next(places, None)


def parse_again(action: Action[T], text: str, recorded: Any, notes: list[str]) -> T | None:
    """Parse the answer again, because JSON may not be able to hold the parsed value."""
    try:
        return action.parse(text)
    except Exception as error:  # noqa: BLE001 - the parser is the user's code, and it may have changed since
        note = f"the value is as recorded, because the answer can't be parsed any more: {type(error).__name__}"
        if note not in notes:
            notes.append(note)
        return cast("T | None", recorded)


def restore_attempt(
    action: Action[T], sent: Sequence[Message], generation: Generation | None, options: Options | None = None
) -> tuple[Attempt[T], Context]:
    """Return the plan of an attempt that sent these messages, and the conversation after its answer."""
    tried = Attempt(action.with_content(sent[-1].content), Context(sent[:-1]), options)
    return tried, Context(sent if generation is None else (*sent, *generation.turns, generation.message))
