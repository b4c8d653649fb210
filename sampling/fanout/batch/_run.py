"""One run over batch APIs."""

import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from contextvars import copy_context
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Final, TypeVarTuple

import anyio
import attrs
from anyio.abc import TaskGroup

from sampling._engine.scope import current_item
from sampling._log import Logger
from sampling.backends._deferral import defer_to, stop_deferring
from sampling.backends.http._batches import BatchClient, BatchState
from sampling.backends.http._chat_backend import ChatBackend
from sampling.backends.layers import Priced
from sampling.backends.layers._layer import iter_backends
from sampling.errors import BackendError, BadRequest, Timeout, Unsupported
from sampling.fanout.batch._lane import Lane, possible_batches, retry_transient_errors
from sampling.fanout.batch._ledger import Batch, Ledger
from sampling.fanout.batch._results import GONE, Results, error_of_problem
from sampling.fanout.batch._settings import BatchProgress, Settings
from sampling.fanout.batch._tickets import ItemRequests, ParkedRequest
from sampling.fanout.engines import RequestLimit, SampleItem, Work
from sampling.fanout.items import Item
from sampling.results import SamplingResult
from sampling.usage import Price

__all__ = ["BatchRun"]

Ts = TypeVarTuple("Ts")

log = Logger("sampling.fanout.batch")

_POLL_GROWTH: Final = 1.5
_MAX_DENIALS: Final = 4
"""The number of polls in a row that don't find a batch until it counts as lost."""

_CANCEL_POLL_S: Final = 2.0
_CANCEL_PATIENCE_S: Final = 900.0


class BatchRun:
    """One run: the lanes that create batches, and the polling of batches in progress."""

    def __init__(self, work: Work, settings: Settings) -> None:
        self._work = attrs.evolve(work, backend=RequestLimit(work.max_requests).wrap(work.backend))
        self._settings = settings
        self._ledger = Ledger(work.notes)
        self._clients: dict[object, BatchClient] = {}
        self._lanes: dict[tuple[object, str], Lane] = {}
        self._running: dict[str, Batch] = {}
        """Batches that have not ended, by name."""

        self._batch_of: dict[str, Batch] = {}
        """The batches in progress, by the ids of their requests."""

        self._numbers = count(1)
        self._stack = AsyncExitStack()
        self._tasks: TaskGroup
        self._context = copy_context()

    # Enter and exit.

    async def __aenter__(self) -> SampleItem:
        self._clients = _clients_of(self._work)
        _prepare_budget(self._work, self._settings.price_factor)
        async with AsyncExitStack() as stack:
            for client in self._clients.values():
                await stack.enter_async_context(client)
            stack.push_async_callback(self._cancel_batches)
            resumed = await self._ledger.load({client.where: client for client in self._clients.values()})
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(self._tasks.cancel_scope.cancel)
            await self._ledger.account(await self._resume(resumed))
            self._stack = stack.pop_all()
        return self._sample

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # The tasks end first, then batches are cancelled, and then the connections are closed.
        await self._stack.aclose()

    async def _resume(self, batches: list[Batch]) -> set[int]:
        """Resume the batches of earlier processes. Return the items that may be billed twice."""
        in_doubt = set(self._ledger.unreachable)
        for batch in batches:
            if batch.state == "sending":
                await self._find(batch)
            if batch.batch_id is not None:
                self._watch_soon(batch)
            else:
                in_doubt.update(batch.requests.values() if batch.state == "sending" else ())
                await self._ledger.end(batch)
        if self._running:
            log.info("batches_resumed", batches=len(self._running))
        return in_doubt

    async def _find(self, batch: Batch) -> None:
        """Look for a batch that may have been created, although its id was not recorded."""
        found = await retry_transient_errors(lambda: possible_batches(batch, self._ledger.known_ids))
        if found:
            batch.batch_id, batch.candidates, batch.state = found[0], found[1:], "running"
            batch.is_verified = batch.client.keeps_names
            await self._ledger.update(batch)

    # Items.

    async def _sample(self, item: Item[Any]) -> SamplingResult[Any]:
        work, notes = self._work, self._work.notes
        requests = ItemRequests(
            item,
            item.index if notes is None else notes.slot_of(item),
            run_id=work.run_id,
            price_factor=self._settings.price_factor,
            has_batches=lambda backend: id(backend) in self._clients,
            lane_of=self._lane_of,
            accept=self._accept,
            is_known=self._is_known,
        )
        token = defer_to(requests)
        try:
            result = await work.strategy.sample(
                item.action,
                work.context,
                work.backend,
                work.requirements,
                options=work.options,
                budget=work.budget,
                hooks=work.hooks,
            )
        except anyio.get_cancelled_exc_class():
            self._leave_to_resume()
            raise
        except Exception:
            self._ledger.check_inherited(requests)
            with anyio.CancelScope(shield=True):
                await self._ledger.reject(requests.rejected, requests.slot)
            raise
        finally:
            stop_deferring(token)
        self._ledger.check_inherited(requests)
        if result.success or not (result.errors or result.stop_reason in {"budget", "deadline"}):
            self._ledger.answered.difference_update(requests.ids)
            return result
        # The item may be sampled again, and then uses the answers that it has.
        if requests.rejected:
            await self._ledger.reject(requests.rejected, requests.slot)
        else:
            self._leave_to_resume()
        return result

    def _is_known(self, custom_id: str) -> bool:
        return custom_id in self._ledger.answered or custom_id in self._batch_of

    def _leave_to_resume(self) -> None:
        """Count nothing for an item without an outcome: a resume finds its answers, and counts them then."""
        scope = current_item()
        if scope is not None:
            scope.left_to_resume = self._ledger.is_durable

    def _lane_of(self, backend: object, model: str) -> Lane:
        client = self._clients[id(backend)]
        lane = self._lanes.get((client, model))
        if lane is None:
            lane = self._lanes[client, model] = Lane(client, self._settings, self._ledger, self._watch_soon)
            self._start(lane.run, name="sampling fan-out: batches")
        return lane

    def _accept(self, request: ParkedRequest) -> None:
        batch = self._batch_of.get(request.custom_id)
        if request.custom_id in self._ledger.answered:
            request.replay = partial(self._replay, request)
        elif batch is None:
            request.lane.add(request)
        elif batch.error is not None:
            request.fail(batch.error)
        else:
            request.is_sent = True
            request.tries = max(request.tries, 1)
            batch.tickets[request.custom_id] = request

    async def _replay(self, request: ParkedRequest) -> None:
        """Answer a request from the journal."""
        try:
            reply = await self._ledger.answer(request.custom_id)
        except Exception as error:  # noqa: BLE001 - it is that of the request
            request.fail(error)
            return
        if reply is None:
            request.lane.add(request)
        else:
            request.answer(reply)

    # Batches in progress.

    def _watch_soon(self, batch: Batch) -> None:
        batch.number = next(self._numbers)
        self._running[batch.name] = batch
        self._batch_of.update(dict.fromkeys(batch.requests, batch))
        self._report(batch, "created")
        log.info("batch_created", batch=batch.batch_id, number=batch.number, requests=batch.size)
        self._start(self._watch, batch, name="sampling fan-out: a batch")

    def _start(self, function: Callable[[*Ts], Coroutine[Any, Any, None]], *args: *Ts, name: str) -> None:
        """Start a task in the context of the run, because it serves more than one item."""
        self._context.run(lambda: self._tasks.start_soon(function, *args, name=name))

    async def _watch(self, batch: Batch) -> None:
        ids = tuple(batch.requests)
        try:
            state = await self._wait_for_end(batch)
            if state is None:
                await self._try_candidates(batch)
            else:
                await self._collect(batch, state)
        except Exception as error:  # noqa: BLE001 - it is that of the requests
            log.warning("batch_failed", batch=batch.batch_id, error_type=type(error).__name__)
            batch.error = error
            # It may have been billed, and a layer may send its requests again.
            self._ledger.doubt(batch.requests)
            for request in batch.tickets.values():
                request.fail(error)
            return
        self._running.pop(batch.name, None)
        for custom_id in ids:
            if self._batch_of.get(custom_id) is batch:
                del self._batch_of[custom_id]
        if state is None or not state.problems:
            for lane in self._lanes.values():
                lane.resume()

    async def _wait_for_end(self, batch: Batch) -> BatchState | None:
        """Poll until a batch has ended, despite errors of the server. Return None if there is no such batch."""
        settings = self._settings
        age_s = max(0.0, time.time() - batch.created_s) if batch.resumed else 0.0
        deadline = anyio.current_time() + max(settings.max_wait_s - age_s, 0.0)
        interval_s = 0.0 if batch.resumed else settings.poll_interval_s
        is_cancelled = False
        batch.denials = 0
        while True:
            await anyio.sleep(min(interval_s, max(deadline - anyio.current_time(), 0.0)))
            interval_s = min(max(interval_s * _POLL_GROWTH, settings.poll_interval_s), settings.max_poll_interval_s)
            state = await self._poll(batch)
            # A new batch may not be found for a moment, and the requests of a lost one are paid for again.
            if batch.denials >= _MAX_DENIALS:
                return None
            if state is not None and state.ended:
                return state
            if anyio.current_time() >= deadline:
                if batch.timed_out:
                    raise Timeout(f"the batch had not ended after {settings.max_wait_s:g} s", hint="Raise max_wait_s.")
                batch.timed_out = True
                deadline = anyio.current_time() + _CANCEL_PATIENCE_S
            if batch.timed_out:
                is_cancelled = is_cancelled or await self._cancel(batch)

    async def _poll(self, batch: Batch) -> BatchState | None:
        """Return the state of a batch and report it, or None if the server does not tell."""
        try:
            state = await self._state(batch)
        except BadRequest as error:
            if error.status not in GONE:
                raise
            batch.denials += 1
            return None
        if state is not None:
            batch.denials = 0
            self._report(batch, state.status, state)
        return state

    async def _state(self, batch: Batch) -> BatchState | None:
        try:
            return await batch.client.state(batch.batch_id or "")
        except BackendError as error:
            if not error.retryable:
                raise
            log.warning("batch_not_polled", batch=batch.batch_id, error_type=type(error).__name__)
            return None

    async def _collect(self, batch: Batch, state: BatchState) -> None:
        ids = tuple(batch.requests)
        results = Results(batch, self._ledger, self._settings, self._send_again, state)
        # Some servers refuse a batch when they have run a part of it, which is paid for.
        if state.files or not state.problems:
            await results.read()
        if state.problems:
            await self._handle_refusal(batch, state, ids)
            return
        if not results.found and not batch.is_verified and batch.requests:
            # It was mistaken for ours, but has none of our requests.
            await self._try_candidates(batch)
            return
        await results.finish()
        log.info("batch_ended", batch=batch.batch_id, number=batch.number, status=state.status)

    def _send_again(self, request: ParkedRequest) -> None:
        if not request.is_abandoned:
            request.lane.add(request)

    async def _handle_refusal(self, batch: Batch, state: BatchState, ids: Sequence[str]) -> None:
        """Handle a batch of these requests that the provider refused. What has no result was not billed."""
        log.warning("batch_refused", batch=batch.batch_id, requests=len(batch.requests), problems=len(state.problems))
        tickets = dict(batch.tickets)
        batch.tickets.clear()
        await self._ledger.end(batch)
        batch.requests.clear()
        problem = state.problems[0]
        error = error_of_problem(problem)
        if problem.is_about_limit:
            self._send_when_there_is_room(batch, list(tickets.values()), error)
            return
        at_fault = {ids[one.line - 1]: one for one in state.problems if one.line and one.line <= len(ids)}
        for custom_id, ticket in tickets.items():
            if custom_id in at_fault:
                ticket.refuse(error_of_problem(at_fault[custom_id]))
            elif at_fault:
                self._send_refused_again(ticket)
            elif error.retryable and ticket.tries < self._settings.max_tries:
                self._send_again(ticket)
            else:
                ticket.refuse(error)

    def _send_when_there_is_room(self, batch: Batch, tickets: list[ParkedRequest], error: BackendError) -> None:
        """Send requests again that the queue of the account had no room for, or end them if that lasts too long."""
        is_alone = len(self._running) == 1
        waits = {lane: lane.wait_for_room(batch.size, is_alone=is_alone) for lane in {one.lane for one in tickets}}
        for ticket in tickets:
            if waits[ticket.lane]:
                self._send_refused_again(ticket)
            else:
                ticket.refuse(error)

    def _send_refused_again(self, request: ParkedRequest) -> None:
        """Send a request again that the provider has refused to try."""
        request.tries -= 1
        self._send_again(request)

    async def _try_candidates(self, batch: Batch) -> None:
        """Wait for the other batches at the provider that may be this one. Without any, it is lost."""
        while batch.candidates:
            batch.batch_id = batch.candidates.pop(0)
            state = await self._wait_for_end(batch)
            if state is not None:
                await self._collect(batch, state)
                return
        await self._handle_loss(batch)

    async def _handle_loss(self, batch: Batch) -> None:
        """Send the requests of a batch again that the provider does not know, or has deleted."""
        log.warning("batch_lost", batch=batch.batch_id, requests=len(batch.requests))
        tickets = list(batch.tickets.values())
        await self._ledger.end(batch, is_lost=True)
        batch.tickets.clear()
        batch.requests.clear()
        for ticket in tickets:
            self._send_again(ticket)

    def _report(self, batch: Batch, status: str, state: BatchState | None = None) -> None:
        if self._settings.on_progress is None:
            return
        progress = BatchProgress(
            number=batch.number,
            batch_id=batch.batch_id,
            status=status,
            requests=batch.size,
            done=0 if state is None else state.done,
            failed=0 if state is None else state.failed,
            ended=state is not None and state.ended,
            resumed=batch.resumed,
        )
        try:
            self._settings.on_progress(progress)
        except Exception as error:  # noqa: BLE001 - a display can't end a run
            log.warning("batch_progress_failed", error_type=type(error).__name__)

    # Cancelling.

    async def _cancel(self, batch: Batch) -> bool:
        """Cancel a batch at the provider. Return False if that failed, such as because it has just ended."""
        if not batch.is_verified:
            # It may belong to somebody else.
            log.warning("batch_left_running", batch=batch.batch_id)
            return True
        batch.state = "cancelling"
        await self._ledger.update(batch)
        try:
            await batch.client.cancel(batch.batch_id or "")
        except BackendError as error:
            log.warning("batch_not_cancelled", batch=batch.batch_id, error_type=type(error).__name__)
            return False
        return True

    async def _cancel_batches(self) -> None:
        """Cancel the batches that are in progress when the run ends, and keep what they have finished."""
        batches = [batch for batch in self._running.values() if batch.error is None]
        if not batches or not self._settings.cancel_on_exit:
            return
        log.warning("batches_cancelled", batches=len(batches), requests=sum(len(batch.requests) for batch in batches))
        # A request to cancel takes a moment even if nothing is to be waited for.
        with anyio.move_on_after(max(self._settings.cancel_grace_s, _CANCEL_POLL_S), shield=True):
            async with anyio.create_task_group() as group:
                for batch in batches:
                    group.start_soon(self._cancel_and_keep, batch)

    async def _cancel_and_keep(self, batch: Batch) -> None:
        is_cancelled = False
        try:
            batch.tickets.clear()
            while True:
                state = await self._state(batch)
                if state is not None and state.ended:
                    break
                if not is_cancelled and (is_cancelled := await self._cancel(batch)):
                    if not self._ledger.is_durable or not batch.is_verified:
                        return
                    continue
                await anyio.sleep(_CANCEL_POLL_S)
            if self._ledger.is_durable:
                self._report(batch, state.status, state)
                await self._collect(batch, state)
        except Exception as error:  # noqa: BLE001 - a resume finds the batch again
            log.warning("batch_not_cancelled", batch=batch.batch_id, error_type=type(error).__name__)


def _clients_of(work: Work) -> dict[object, BatchClient]:
    """Return the clients of all backends that have a batch API, by the id of the backend."""
    clients: dict[object, BatchClient] = {}
    refusal: Unsupported | None = None
    for backend in iter_backends(work.backend):
        if isinstance(backend, ChatBackend):
            try:
                clients[id(backend)] = backend.batch_client()
            except Unsupported as error:
                refusal = error
    if not clients:
        raise refusal or Unsupported(
            "the backend has no batch API", hint="BatchEngine needs an OpenAIBackend or an AnthropicBackend."
        )
    _tell_apart(clients.values())
    return clients


def _tell_apart(clients: Iterable[BatchClient]) -> None:
    """Number clients of the same address. Their keys may be of different accounts, which don't see others' batches."""
    seen = Counter[str]()
    for client in clients:
        seen[client.where] += 1
        if seen[client.where] > 1:
            client.where += f" {seen[client.where]}"


def _prepare_budget(work: Work, price_factor: float) -> None:
    """Make a budget reserve at batch prices, because a whole batch is sent before any of it is settled."""
    budget = work.budget
    if budget is None or (budget.tokens is None and budget.cost is None):
        return
    if work.options is None or work.options.max_tokens is None:
        raise ValueError(
            "a budget of tokens or cost needs options=Options(max_tokens=…) with BatchEngine: "
            "a batch is sent as a whole, so its maximum usage must be known before"
        )
    if budget.cost is not None:
        layers = [one for one in iter_backends(work.backend) if isinstance(one, Priced)]
        budget.expect_prices(partial(_highest_price, layers, price_factor))


def _highest_price(layers: Sequence[Priced], price_factor: float, model: str | None) -> Price:
    """Return the highest price of a model in a batch at any of the backends, because any of them may answer."""
    prices = [Price(0.0, 0.0)]
    for layer in layers:
        # A request for a model without a price is refused before it is sent.
        with suppress(ValueError):
            prices.append(layer.price_of(model))
    inputs = [max(price.input_per_million, price.cache_write_per_million or 0.0) for price in prices]
    outputs = [price.output_per_million for price in prices]
    return Price(max(inputs) * price_factor, max(outputs) * price_factor)
