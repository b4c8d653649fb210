"""Print progress as plain lines, for logs and pipes."""

import time
from collections import Counter
from collections.abc import Callable

from sampling.fanout.batch import BatchProgress
from sampling.fanout.items import ItemFinished, ItemStatus
from sampling.hooks import Hooks
from sampling.usage import NO_USAGE

__all__ = ["BatchLines", "PlainProgress"]


class PlainProgress:
    """
    Prints the progress of a run every few seconds.

    The lines never contain model text.
    """

    def __init__(self, total: int, print_line: Callable[[str], None], *, every_s: float = 10.0) -> None:
        self._total = total
        self._print_line = print_line
        self._every_s = every_s
        self._started_s = self._printed_s = time.monotonic()
        self._counts: Counter[ItemStatus] = Counter()
        self._recorded = 0
        self._usage = NO_USAGE

    def hooks(self) -> Hooks:
        """Return the hooks for the run."""
        hooks = Hooks()
        hooks.on(ItemFinished)(self._count)
        return hooks

    def _count(self, event: ItemFinished) -> None:
        self._counts[event.outcome.status] += 1
        self._recorded += event.recorded
        self._usage += event.outcome.usage
        now = time.monotonic()
        if now - self._printed_s >= self._every_s:
            self._printed_s = now
            self._print_line(self.line(now - self._started_s))

    def line(self, elapsed_s: float) -> str:
        """Return the progress line."""
        done = self._counts.total()
        parts = [f"{done:,} of {self._total:,} done"]
        parts += [f"{self._counts[status]:,} {status}" for status in ("failed", "errored") if self._counts[status]]
        if self._usage.total_tokens:
            parts.append(f"{self._usage.total_tokens:,} tokens")
        if self._usage.cost:
            parts.append(f"cost {self._usage.cost:.4g}")
        new = done - self._recorded
        # Items that a journal already had would make the rate look too high.
        if new and elapsed_s > 0:
            rate = new / elapsed_s
            parts += [f"{rate:.3g} per second", f"about {_duration((self._total - done) / rate)} left"]
        return ", ".join(parts)


class BatchLines:
    """Prints a line when the state of a batch changes."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print_line = print_line
        self._printed: dict[int, str] = {}

    def __call__(self, progress: BatchProgress) -> None:
        """Print the state of a batch, if it differs from the one that was printed last."""
        counts = f"{progress.done:,} of {progress.requests:,} done"
        failed = f", {progress.failed:,} with an error" if progress.failed else ""
        line = f"batch {progress.number} ({progress.batch_id}): {progress.status}, {counts}{failed}"
        if self._printed.get(progress.number) != line:
            self._printed[progress.number] = line
            self._print_line(line)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
