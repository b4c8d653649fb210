"""
The worker process, which samples items for the driver.

It holds the strategy and the backend.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from threading import Thread
from typing import Any, cast

import anyio
import attrs
from anyio.lowlevel import checkpoint_if_cancelled, current_token

from sampling._engine.scope import enter_item
from sampling.budgets import Budget
from sampling.fanout.engines import RequestLimit
from sampling.fanout.ray._wire import Shared, WorkerJob, WorkerReply, check_versions, pack_reply, unpack, with_traceback
from sampling.protocols import BackendLike, generate_of

__all__ = ["Worker"]


class Worker:
    """
    Samples any number of items at once.

    Ray runs it as an async actor.
    The driver makes all decisions: which items run, in which order, and when they stop.
    """

    def __init__(self, *, owns_process: bool = False) -> None:
        """With `owns_process`, the process ends when its event loop does."""
        self._owns_process = owns_process
        self._shared: Shared | None = None
        self._backend: BackendLike | None = None
        self._limit = RequestLimit(None)
        self._names: dict[str, Any] = {}
        self._open = anyio.Event()
        self._closing = anyio.Event()
        self._failure: Exception | None = None
        self._cancel_scopes: dict[str, anyio.CancelScope] = {}
        self._stopped_early: set[str] = set()
        """Calls that were stopped before they started: messages of the driver may overtake each other."""

    async def serve(self, packed: bytes, versions: Mapping[str, str]) -> None:
        """
        Keep the backend open until `close` is called.

        One task opens and closes it, as some backends require. `versions` are those of the driver.
        """
        if self._owns_process:
            _end_with_event_loop()
        try:
            check_versions(versions)
            async with AsyncExitStack() as stack:
                self._shared = cast("Shared", unpack(packed))
                self._names = self._shared.names()
                self._limit = RequestLimit(self._shared.max_requests)
                self._backend = self._limit.wrap(await self._opened_backend(self._shared, stack))
                self._open.set()
                await self._closing.wait()
        except Exception as error:  # noqa: BLE001 - the driver raises it when it calls `ready`
            self._failure = with_traceback(error)
        finally:
            self._open.set()

    async def _opened_backend(self, shared: Shared, stack: AsyncExitStack) -> BackendLike:
        if shared.backend_factory is None:
            return cast("BackendLike", shared.backend)
        backend = shared.backend_factory()
        generate_of(backend)  # raises if it is not a backend
        if hasattr(backend, "__aenter__"):
            await stack.enter_async_context(cast("Any", backend))
        return backend

    async def ready(self) -> bytes:
        """
        Wait until the backend is open.

        The reply has the error if it could not be opened.
        """
        await self._open.wait()
        return pack_reply(WorkerReply(error=self._failure), {})

    async def sample(self, call: str, packed: bytes) -> bytes:
        """
        Sample one item.

        The reply is sent when no task of the item is running any more.
        """
        await self._open.wait()
        try:
            job = cast("WorkerJob", unpack(packed))
        except Exception as error:  # noqa: BLE001 - it is the item's own, and nothing was spent
            return pack_reply(WorkerReply(error=with_traceback(error)), {})
        budget = Budget() if job.allowance is None else job.allowance.budget()
        scope = enter_item(job.item.item_id, None)
        self._limit.wrap_others()
        reply = WorkerReply()
        with anyio.CancelScope() as self._cancel_scopes[call]:
            if call in self._stopped_early:
                self._stopped_early.remove(call)
                self._cancel_scopes[call].cancel()
                await checkpoint_if_cancelled()
            reply = await self._sample(job, budget)
        del self._cancel_scopes[call]
        reply = attrs.evolve(
            reply,
            usage=scope.spent,
            attempts=budget.attempts_made,
            requests=budget.requests_made,
            tokens=budget.tokens_charged,
        )
        return pack_reply(reply, job.names(self._names))

    async def _sample(self, job: WorkerJob, budget: Budget) -> WorkerReply:
        shared = self._shared
        if shared is None or self._failure is not None:
            return WorkerReply(error=self._failure)
        try:
            result = await shared.strategy.sample(
                job.item.action,
                shared.context,
                cast("BackendLike", self._backend),
                shared.requirements,
                options=shared.options,
                budget=budget,
                hooks=shared.hooks,
            )
        except Exception as error:  # noqa: BLE001 - the driver raises it, as if the call had run there
            return WorkerReply(error=with_traceback(error))
        except (SystemExit, KeyboardInterrupt) as request:
            # In the event loop of an actor it would end the loop, and the driver would never get a reply.
            return WorkerReply(exit=request)
        return WorkerReply(result=result)

    async def stop(self, call: str) -> None:
        """Cancel a call. Its reply is sent once it has stopped."""
        cancel_scope = self._cancel_scopes.get(call)
        if cancel_scope is not None:
            cancel_scope.cancel()
        else:
            self._stopped_early.add(call)

    async def close(self) -> None:
        """Close the backend. No call may be running."""
        self._closing.set()


_CHECK_EVERY_S = 0.5


def _end_with_event_loop() -> None:
    """
    End this process when its event loop ends.

    A SystemExit in another task ends the loop but not the process, and the driver would wait forever.
    """
    loop: Any = current_token().native_token
    if callable(is_running := getattr(loop, "is_running", None)):
        Thread(target=_watch, args=[is_running], name="sampling-loop-watch", daemon=True).start()


def _watch(is_running: Callable[[], bool]) -> None:
    while is_running():
        time.sleep(_CHECK_EVERY_S)
    if not sys.is_finalizing():
        os._exit(1)
