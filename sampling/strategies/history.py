"""Which of the earlier attempts a repair tells the model of."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias, TypeVar

import attrs

from sampling._arguments import check_int, wrong_type
from sampling.results import Slice

__all__ = ["History", "HistoryLike", "as_history", "estimated_tokens"]

T = TypeVar("T")

CHARS_A_TOKEN = 4
"""About how many characters of English make a token."""


def estimated_tokens(text: str) -> int:
    """Guess how many tokens a text is: a quarter of its characters, rounded up."""
    return -(-len(text) // CHARS_A_TOKEN)


@attrs.frozen
class History:
    """
    Which failed attempts of a subsample a repair tells the model of.

    `keep` is "all", "best" (the one that met most requirements, the latest of equals), or how many of the last.
    With `max_tokens`, the oldest are left out until the next prompt has no more than that;
    what was asked first, and why the newest one failed, is always told.
    """

    keep: Literal["all", "best"] | int = "all"
    max_tokens: int | None = attrs.field(default=None, kw_only=True)
    count_tokens: Callable[[str], int] = attrs.field(default=estimated_tokens, kw_only=True)
    """Counts the tokens of a text; by default it is a guess."""

    def __attrs_post_init__(self) -> None:
        if isinstance(self.keep, str) and self.keep not in {"all", "best"}:
            raise ValueError(f"keep must be 'all', 'best' or how many of the last, got {self.keep!r}")
        if not isinstance(self.keep, str):
            check_int("keep", self.keep, least=1)
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens, least=1)
        if not callable(self.count_tokens):
            raise wrong_type("count_tokens", self.count_tokens, "a function that counts the tokens of a text")

    @property
    def keeps_all(self) -> bool:
        """Whether nothing is ever left out."""
        return self.keep == "all" and self.max_tokens is None

    def kept(self, history: Sequence[Slice[T]]) -> Sequence[Slice[T]]:
        """Return what to tell of, oldest first, whatever it takes."""
        if self.keep == "all":
            return history
        if self.keep == "best":
            return [max(history, key=lambda one: (one.passed, one.score, one.attempt))]
        return history[-self.keep :]

    def within(
        self, candidates: Sequence[Slice[T]], texts: Callable[[Slice[T]], Iterable[str]], always: Iterable[str]
    ) -> Sequence[Slice[T]]:
        """Return as many of the newest as there is room for beside what is sent `always`, oldest first."""
        if self.max_tokens is None:
            return candidates
        room = self.max_tokens - self._tokens(always)
        fitting: list[Slice[T]] = []
        for candidate in reversed(candidates):
            room -= self._tokens(texts(candidate))
            if room < 0:
                break
            fitting.append(candidate)
        return fitting[::-1]

    def _tokens(self, texts: Iterable[str]) -> int:
        return sum(self.count_tokens(text) for text in texts)


HistoryLike: TypeAlias = History | Literal["all", "best"] | int
"""What may stand for a history: itself, or what it keeps."""


def as_history(history: HistoryLike) -> History:
    """Make a history of what the caller gave."""
    if isinstance(history, History):
        return history
    if isinstance(history, bool) or not isinstance(history, str | int):
        raise wrong_type("history", history, "a History, 'all', 'best' or how many of the last attempts to keep")
    return History(history)
