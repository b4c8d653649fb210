"""A period in which the event loop was blocked."""

from collections.abc import Mapping
from typing import Any, Self

import attrs

from sampling.load.model._schema import build

__all__ = ["Stall"]


@attrs.frozen(kw_only=True)
class Stall:
    """A period in which code blocked the event loop. The load generator was blocked, too."""

    at_s: float
    """The start of the stall. In a report, in seconds from the start of the measurement."""

    blocked_s: float
    """The minimum duration of the stall."""

    where: tuple[str, ...]
    """The code that was running, `file:line function`, innermost first."""

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Self:
        """Rebuild a stall from a dictionary."""
        values = {"at_s": found["at_s"], "blocked_s": found["blocked_s"], "where": tuple(found["where"])}
        return build(cls, values)
