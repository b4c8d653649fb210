"""The draws of a vote that are still open."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any

import attrs

from sampling.results import Slice

__all__ = ["OpenDraws"]


@attrs.frozen
class OpenDraws:
    """
    The subsamples that may still give a valid answer.

    They include those that have not started yet.
    """

    count: int
    earliest: int
    """The lowest iteration that an open draw may have, or 0 if none is open."""

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
        """
        Return the open draws after these slices.

        `ended` holds subsamples that ended for other reasons, such as an error.
        """
        # A draw closes with its first valid answer, or when its depth is used up.
        closed = {one.subsample for one in slices if one.valid or one.attempt + 1 == loop_budget} | ended
        lowest = next((subsample for subsample in range(concurrency_budget) if subsample not in closed), None)
        return cls(concurrency_budget - len(closed), 0 if lowest is None else lowest * loop_budget + 1, closed)
