"""The earlier attempts that a repair shows to the model."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias, TypeVar

import attrs

from sampling._arguments import check_int, wrong_type
from sampling.results import Slice

__all__ = ["History", "HistoryLike", "as_history", "estimated_tokens"]

T = TypeVar("T")

CHARS_PER_TOKEN = 4
"""Average length of a token in English text."""


def estimated_tokens(text: str) -> int:
    """Estimate the tokens of a text: a quarter of its characters, rounded up."""
    return -(-len(text) // CHARS_PER_TOKEN)


@attrs.frozen
class History:
    """
    A rule for which failed attempts a repair shows to the model.

    `keep` is "all", "best", or the number of latest attempts.
    "best" is the attempt that met the most requirements, and the latest of them on a tie.
    With `max_tokens`, the oldest are dropped until the next prompt fits.
    The first question, and the reasons why the newest attempt failed, are always sent.
    """

    keep: Literal["all", "best"] | int = "all"
    max_tokens: int | None = attrs.field(default=None, kw_only=True)
    count_tokens: Callable[[str], int] = attrs.field(default=estimated_tokens, kw_only=True)
    """Count the tokens of a text. The default estimates from the number of characters."""

    def __attrs_post_init__(self) -> None:
        if isinstance(self.keep, str) and self.keep not in {"all", "best"}:
            raise ValueError(f"keep must be 'all', 'best' or the number of latest attempts, got {self.keep!r}")
        if not isinstance(self.keep, str):
            check_int("keep", self.keep, least=1)
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens, least=1)
        if not callable(self.count_tokens):
            raise wrong_type("count_tokens", self.count_tokens, "a function that counts the tokens of a text")

    @property
    def keeps_all(self) -> bool:
        """True if no attempt is ever dropped."""
        return self.keep == "all" and self.max_tokens is None

    def kept(self, history: Sequence[Slice[T]]) -> Sequence[Slice[T]]:
        """Return the attempts to show, oldest first, without regard to `max_tokens`."""
        if self.keep == "all":
            return history
        if self.keep == "best":
            return [max(history, key=lambda one: (one.passed, one.score, one.attempt))]
        return history[-self.keep :]

    def within(
        self, candidates: Sequence[Slice[T]], texts: Callable[[Slice[T]], Iterable[str]], always: Iterable[str]
    ) -> Sequence[Slice[T]]:
        """Return the newest candidates that fit beside the `always` texts, oldest first."""
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
"""A `History`, or a value for its `keep`."""


def as_history(history: HistoryLike) -> History:
    """Convert an argument to a `History`."""
    if isinstance(history, History):
        return history
    if isinstance(history, bool) or not isinstance(history, str | int):
        raise wrong_type("history", history, "a History, 'all', 'best' or the number of latest attempts to keep")
    return History(history)
