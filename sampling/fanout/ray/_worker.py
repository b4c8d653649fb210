"""What runs on a worker: it has the strategy and the backend, and samples the items that it is sent."""

from contextlib import AsyncExitStack
from typing import Any, cast

import anyio
import attrs
from anyio.lowlevel import checkpoint_if_cancelled

from sampling._engine import scope as identity
from sampling.budgets import Budget
from sampling.fanout.ray._wire import Job, Reply, Shared, pack_reply, unpack, with_traceback
from sampling.protocols import BackendLike, generate_of

__all__ = ["Worker"]


class Worker:
    """
    Samples items, any number at once; Ray makes an async actor of it.

    It decides nothing: what to run, in which order, and when to stop, is told by the driver.
    """

    def __init__(self) -> None:
        self._shared: Shared | None = None
        self._backend: BackendLike | None = None
        self._names: dict[str, Any] = {}
        self._open = anyio.Event()
        self._closing = anyio.Event()
        self._failure: Exception | None = None
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._stopped_early: set[str] = set()

    async def serve(self, packed: bytes) -> None:
        """Open the backend, keep it open until `close`, and close it: in one task, as some backends want it."""
        try:
            async with AsyncExitStack() as stack:
                self._shared = cast("Shared", unpack(packed))
                self._names = self._shared.names()
                self._backend = await self._opened_backend(self._shared, stack)
                self._open.set()
                await self._closing.wait()
        except Exception as error:  # noqa: BLE001 - the driver raises it, where it waits for this worker to be ready
            self._failure = with_traceback(error)
        finally:
            self._open.set()

    async def _opened_backend(self, shared: Shared, stack: AsyncExitStack) -> BackendLike:
        if shared.backend_factory is None:
            return cast("BackendLike", shared.backend)
        backend = shared.backend_factory()
        generate_of(backend)  # raises if it is none
        if hasattr(backend, "__aenter__"):
            await stack.enter_async_context(cast("Any", backend))
        return backend

    async def ready(self) -> bytes:
        """Wait until the backend is open, or can't be opened; the reply has what went wrong then."""
        await self._open.wait()
        return pack_reply(Reply(error=self._failure), {})

    async def sample(self, call: str, packed: bytes) -> bytes:
        """Sample one item, and say what became of it; the reply comes when nothing of it is running any more."""
        await self._open.wait()
        job = cast("Job", unpack(packed))
        budget = Budget() if job.allowance is None else job.allowance.budget()
        place = identity.enter_item(job.item.item_id, None)
        reply = Reply()
        with anyio.CancelScope() as self._scopes[call]:
            if call in self._stopped_early:
                self._stopped_early.remove(call)
                self._scopes[call].cancel()
                await checkpoint_if_cancelled()
            reply = await self._sample(job, budget)
        del self._scopes[call]
        reply = attrs.evolve(
            reply,
            usage=place.spent,
            attempts=budget.attempts_made,
            requests=budget.requests_made,
            tokens=budget.tokens_charged,
        )
        return pack_reply(reply, job.names(self._names))

    async def _sample(self, job: Job, budget: Budget) -> Reply:
        shared = self._shared
        if shared is None or self._failure is not None:
            return Reply(error=self._failure)
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
        except Exception as error:  # noqa: BLE001 - the driver raises it again, as if the call had been made there
            return Reply(error=with_traceback(error))
        return Reply(result=result)

    async def stop(self, call: str) -> None:
        """Cancel a call; the reply to it comes when it has really stopped."""
        scope = self._scopes.get(call)
        if scope is not None:
            scope.cancel()
        else:
            self._stopped_early.add(call)

    async def close(self) -> None:
        """Close the backend; nothing may be running any more."""
        self._closing.set()
