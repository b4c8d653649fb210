"""Separate reasoning that a model writes into its answer as `<think>…</think>`."""

__all__ = ["ThinkingSplitter"]

_OPENINGS = ("<think>", "<thinking>", "<thought>")
_LONGEST_OPENING = max(len(opening) for opening in _OPENINGS)


class ThinkingSplitter:
    """
    Splits a text that arrives in pieces into reasoning and answer.

    Only a block at the beginning counts: later on, the tag is part of the answer.
    """

    __slots__ = ("_after_block", "_closing", "_done", "_held")

    def __init__(self) -> None:
        self._held = ""
        """The end of the text so far, while it may be part of a tag or is white space around the block."""

        self._closing: str | None = None
        """The tag that ends the block, inside of it."""

        self._after_block = False
        self._done = False

    @property
    def is_done(self) -> bool:
        """True once everything that follows is part of the answer."""
        return self._done

    def add(self, piece: str) -> tuple[str, str]:
        """Return the reasoning and the answer that the next piece adds."""
        if self._done or not piece:
            return "", piece
        self._held += piece
        if self._after_block:
            return "", self._skip_space()
        if self._closing is None and not self._open():
            return "", self._answer_if_decided()
        return self._close()

    def finish(self) -> tuple[str, str]:
        """Return the rest at the end of the text. A block that never ended is reasoning."""
        held, self._held = self._held, ""
        inside, self._done = self._closing is not None, True
        if self._after_block:
            return "", ""
        return (held, "") if inside else ("", held)

    def _open(self) -> bool:
        start = self._held.lstrip()
        if not start.startswith(_OPENINGS):
            return False
        opening, _, self._held = start.partition(">")
        self._closing = f"</{opening[1:]}>"
        return True

    def _answer_if_decided(self) -> str:
        """Return the held text once it can no longer begin with a tag."""
        start = self._held.lstrip()
        if not start or (start[0] == "<" and _may_become_opening(start)):
            return ""
        held, self._held = self._held, ""
        self._done = True
        return held

    def _close(self) -> tuple[str, str]:
        closing = self._closing or ""
        reasoning, tag, rest = self._held.partition(closing)
        if tag:
            self._closing, self._after_block, self._held = None, True, rest
            return reasoning, self._skip_space()
        held = _possible_beginning(self._held, closing)
        self._held = self._held[len(self._held) - held :]
        return reasoning[: len(reasoning) - held], ""

    def _skip_space(self) -> str:
        """Drop the white space between the block and the answer."""
        answer = self._held.lstrip()
        self._held = ""
        self._done = bool(answer)
        return answer


def _may_become_opening(start: str) -> bool:
    return len(start) < _LONGEST_OPENING and any(opening.startswith(start) for opening in _OPENINGS)


def _possible_beginning(text: str, tag: str) -> int:
    """Return the length of the longest end of the text that begins the tag."""
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if tag.startswith(text[-length:]):
            return length
    return 0
