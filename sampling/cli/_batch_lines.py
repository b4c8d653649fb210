"""Progress of batches: a line for each change of their state."""

from collections.abc import Callable

from sampling.fanout.batch import BatchProgress

__all__ = ["BatchLines"]


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
