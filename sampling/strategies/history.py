"""Choose the earlier attempts that a repair shows."""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias, TypeVar

import attrs

from sampling._arguments import check_int, wrong_type
from sampling._text import CHARS_PER_TOKEN, estimate_tokens
from sampling.results import Slice

__all__ = ["History", "HistoryLike", "as_history", "estimated_tokens"]

T = TypeVar("T")


def estimated_tokens(text: str) -> int:
    """Estimate the tokens of a text, rounded up."""
    # Rounded up, because a prompt is made of many short texts, and each of them has at least one token.
    return estimate_tokens(len(text) + CHARS_PER_TOKEN - 1)


@attrs.frozen
class History:
    """
    A rule for the failed attempts that a repair shows.

    `keep` is "all", "best", or the number of latest attempts.
    "best" is the attempt that met the most requirements, and the latest of them on a tie.
    With `max_tokens`, the oldest are dropped until the next prompt fits.
    The first question, and the reasons why the newest attempt failed, are always sent, even if its answer does not fit.
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
        """Return the attempts that `keep` selects, oldest first."""
        if self.keep == "all":
            return history
        if self.keep == "best":
            return [max(history, key=lambda one: (one.passed, one.score, one.attempt))]
        return history[-self.keep :]

    def within(
        self, candidates: Sequence[Slice[T]], texts: Callable[[Slice[T]], Iterable[str]], always: Iterable[str]
    ) -> Sequence[Slice[T]]:
        """
        Return the newest candidates that fit, oldest first.

        The `always` texts are part of the prompt in any case, and use up room first.
        """
        if self.max_tokens is None:
            return candidates
        room = self.max_tokens - self._tokens(always)
        fitting: list[Slice[T]] = []
        for candidate in reversed(candidates):
            room -= self._tokens(texts(candidate))
            if room < 0:
                # Do not look for shorter ones: the turns that are sent must have no gap.
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
