"""The settings of a batch engine, and what it reports."""

from collections.abc import Callable
from typing import Final

import attrs

__all__ = ["PRICE_FACTOR", "BatchProgress", "Settings"]

PRICE_FACTOR: Final = 0.5
"""The price of a request in a batch, as a fraction of the usual price, at OpenAI and Anthropic."""


@attrs.frozen(kw_only=True)
class BatchProgress:
    """The state of one batch of a run."""

    number: int
    """The number of the batch in this process, counted from 1. A repair is in a later batch than its attempt."""

    batch_id: str | None
    """The id at the provider, once it has one."""

    status: str
    """The status in the words of the provider, such as "in_progress"."""

    requests: int
    done: int
    """The number of requests that have an answer so far."""

    failed: int
    """The number of requests that ended with an error so far."""

    ended: bool = False
    resumed: bool = False
    """Whether an earlier process created the batch."""


@attrs.frozen(kw_only=True)
class Settings:
    """The checked settings of a `BatchEngine`."""

    linger_s: float
    poll_interval_s: float
    max_poll_interval_s: float
    max_wait_s: float
    max_tries: int
    max_batch_requests: int | None
    max_batch_bytes: int
    cancel_on_exit: bool
    cancel_grace_s: float
    price_factor: float
    on_progress: Callable[[BatchProgress], None] | None
