"""`BatchEngine`, which sends requests through the batch API of a provider."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from sampling._arguments import check_bool, check_int, check_number, wrong_type
from sampling.fanout.batch._run import BatchRun
from sampling.fanout.batch._settings import PRICE_FACTOR, BatchProgress, Settings
from sampling.fanout.engines import SampleItem, Work

__all__ = ["BatchEngine"]

_HOUR_S: Final = 3600.0
_MIB: Final = 1024 * 1024


class BatchEngine:
    """
    Sends requests through the batch API of a provider: half the price, within a day.

        result = await fan_out(strategy, items, None, backend, reqs, journal="run.db", engine=BatchEngine())

    `backend` is an `OpenAIBackend` or an `AnthropicBackend`, with or without layers around it. Every strategy works.
    Requests of all items that wait at the same time go into one batch, so the first attempts are one batch, their
    repairs are the next, and so on. Breadth puts several requests of an item into the same batch.
    Requests to other backends of a strategy or a requirement are sent at once.

    With a journal, a batch is recorded before it is created. A run that was killed finds its batches again, waits for
    them, and pays for nothing twice. Answers that are not used yet are kept in the journal.
    Requests that expire, or fail with a transient error, are sent again in a later batch.

    A run that is cancelled, halted or out of budget cancels its batches at the provider. With a journal, what was
    finished by then is kept for a resume.

    Costs that `Priced` computes are those of a batch. A `Budget` of tokens or cost needs `Options(max_tokens=…)`,
    because a batch is sent as a whole, so its maximum usage must be known before.
    """

    def __init__(  # noqa: PLR0913 - each is an independent setting
        self,
        *,
        window: int = 10_000,
        linger_s: float = 10.0,
        poll_interval_s: float = 10.0,
        max_poll_interval_s: float = 120.0,
        max_wait_s: float = 26 * _HOUR_S,
        max_tries: int = 3,
        max_batch_requests: int | None = None,
        max_batch_bytes: int = 64 * _MIB,
        cancel_on_exit: bool = True,
        cancel_grace_s: float = 30.0,
        price_factor: float = PRICE_FACTOR,
        on_progress: Callable[[BatchProgress], None] | None = None,
    ) -> None:
        """
        Configure the engine. Nothing is sent before the run.

        Args:
            window: The number of items in flight at once. It replaces `max_concurrency`, which is for requests that
                are answered in seconds. Each takes some ten kilobytes of memory, and its prompt.

            linger_s: The time to wait for further requests before a batch is created. It is created when no request
                has come for that long, after ten times as long, or when it is full.

            poll_interval_s: The time between creating a batch and polling its state. It grows by half each time.

            max_poll_interval_s: The longest time between two polls.

            max_wait_s: The time to wait for a batch. Then it is cancelled, and its other requests end with a `Timeout`.
                Providers end batches after 24 hours.

            max_tries: The number of times that a request is sent if it expires or fails with a transient error.

            max_batch_requests: The maximum number of requests in a batch. By default that of the provider.

            max_batch_bytes: The maximum size of a batch, which is held in memory. Providers accept 200 MB and more.

            cancel_on_exit: Cancel batches at the provider when the run ends before them. False leaves them running,
                and a later run with the same journal uses their answers.

            cancel_grace_s: The time to wait for cancelled batches at the end of a run with a journal.

            price_factor: The price of a request in a batch, as a fraction of the usual price.

            on_progress: A function that is called when the state of a batch changes.
        """
        if on_progress is not None and not callable(on_progress):
            raise wrong_type("on_progress", on_progress, "a function that takes a BatchProgress, or None")
        self.window: int = check_int("window", window, least=1)
        limit = max_batch_requests
        self._settings = Settings(
            linger_s=check_number("linger_s", linger_s, least=0),
            poll_interval_s=check_number("poll_interval_s", poll_interval_s, above=0),
            max_poll_interval_s=check_number("max_poll_interval_s", max_poll_interval_s, above=0),
            max_wait_s=check_number("max_wait_s", max_wait_s, above=0),
            max_tries=check_int("max_tries", max_tries, least=1),
            max_batch_requests=None if limit is None else check_int("max_batch_requests", limit, least=1),
            max_batch_bytes=check_int("max_batch_bytes", max_batch_bytes, least=1),
            cancel_on_exit=check_bool("cancel_on_exit", cancel_on_exit),
            cancel_grace_s=check_number("cancel_grace_s", cancel_grace_s, least=0),
            price_factor=check_number("price_factor", price_factor, least=0),
            on_progress=on_progress,
        )

    def open(self, work: Work) -> AbstractAsyncContextManager[SampleItem]:
        """Return a context manager for one run."""
        return BatchRun(work, self._settings)

    def __repr__(self) -> str:
        return f"BatchEngine(window={self.window:_}, linger_s={self._settings.linger_s:g})"
