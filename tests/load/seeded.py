"""A run whose order of ties is seeded, too: without that, trio tosses a coin, and no two runs are the same."""

from collections.abc import Callable
from functools import partial
from typing import Any

from sampling.testing import BOTH_LOOPS, run_virtual

LOOPS = BOTH_LOOPS


def run_seeded(loop: str, async_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a function in virtual time on one of the loops."""
    return run_virtual(partial(async_fn, **kwargs), *args, loop=loop, seed=1)
