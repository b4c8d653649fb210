"""Which draws are still open: subsamples that have not come to a valid answer, and may."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any

import attrs

from sampling.results import Slice

__all__ = ["OpenDraws"]


@attrs.frozen
class OpenDraws:
    """The subsamples that may still add a valid answer, started or not."""

    count: int
    earliest: int
    """The lowest iteration that such an answer may have; 0 if none is open."""

    closed: AbstractSet[int]
    """All other subsamples."""

    @classmethod
    def after(
        cls,
        slices: Iterable[Slice[Any]],
        loop_budget: int,
        concurrency_budget: int,
        ended: AbstractSet[int] = frozenset(),
    ) -> "OpenDraws":
        """Tell what is open after these slices; `ended` are subsamples that are known to be over for other reasons."""
        closed = {one.subsample for one in slices if one.valid or one.attempt + 1 == loop_budget} | ended
        lowest = next((subsample for subsample in range(concurrency_budget) if subsample not in closed), None)
        return cls(concurrency_budget - len(closed), 0 if lowest is None else lowest * loop_budget + 1, closed)
