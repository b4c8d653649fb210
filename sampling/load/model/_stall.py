"""A moment in which the event loop of a load run stood still."""

from collections.abc import Mapping
from typing import Any, Self

import attrs

__all__ = ["Stall"]


@attrs.frozen(kw_only=True)
class Stall:
    """The event loop stood still: the load generator, and everything else in its process."""

    at_s: float
    """When it was first overdue: in a report, in seconds from the start of the measurement."""

    blocked_s: float
    """For how long, at least."""

    where: tuple[str, ...]
    """The code that was running, `file:line function`, innermost first."""

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Self:
        """Make one out of what JSON can hold of it."""
        return cls(at_s=found["at_s"], blocked_s=found["blocked_s"], where=tuple(found["where"]))
