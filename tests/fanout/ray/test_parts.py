"""The parts of the Ray engine, tested without a cluster."""

import socket
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import anyio
import pytest
import structlog
from anyio.lowlevel import checkpoint

from sampling import (
    Action,
    Budget,
    Context,
    Generation,
    MultiTurnStrategy,
    RateLimited,
    RejectionSamplingStrategy,
    Requirement,
    Usage,
    current,
    report_usage,
)
from sampling.errors import CheckTimeout, ConnectFailed, NotSendable, SelectionFailed
from sampling.fanout.engines import Work
from sampling.fanout.items import Item

pytest.importorskip("ray")

from sampling.fanout.ray import RayEngine
from sampling.fanout.ray import _cluster as cluster_module
from sampling.fanout.ray import _connection as connection_module
from sampling.fanout.ray._allowances import Allowances
from sampling.fanout.ray._connection import Connection
from sampling.fanout.ray._thread import BridgeThread
from sampling.fanout.ray._wire import (
    Allowance,
    WorkerJob,
    WorkerReply,
    pack_job,
    pack_reply,
    pack_shared,
    unpack_reply,
    versions,
)
from sampling.fanout.ray._worker import Worker


class Peculiar(Exception):
    """An error that can't be made from its own args."""

    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"{code} in {where}")
        self.code = code


class LineDead(ConnectionError):
    """An error of a builtin type that Python restores with its constructor, which adds to the words."""

    def __init__(self, host: str) -> None:
        super().__init__(111, f"{host} is dead")
        self.host = host


class NotThere(ImportError):
    """An error of a builtin type with an attribute outside of its `__dict__`."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}", name=name)


class Unreadable(Exception):
    """An error that can be pickled, and not unpickled."""

    def __reduce__(self):
        return _broken, ()


class Mute(Unreadable):
    """It has no text either."""

    def __str__(self):
        raise ValueError("no text")


class Refusing(Mute):
    """It can't be pickled at all."""

    def __reduce__(self):
        raise TypeError("holds a key")


def _broken():
    raise RuntimeError("it can't be made")


def caused_by(cause: Exception) -> Exception:
    """Make a builtin error with a cause."""
    error = ValueError("value")
    error.__cause__ = cause
    return error


def chained() -> Exception:
    """Make an error with a cause, as several failed attempts have it."""
    error = RateLimited("slow down", retry_after_s=3.5)
    error.__cause__ = ExceptionGroup("all of them", [CheckTimeout("is nice", 2), Peculiar(7, where="here")])
    error.add_note("a note")
    return error


def simple_work(**changes) -> Work:
    """Work with nothing special about it."""
    usual = {
        "run_id": "run",
        "strategy": RejectionSamplingStrategy(),
        "context": None,
        "backend": answer,
        "requirements": (),
        "options": None,
        "budget": None,
        "hooks": None,
        "max_concurrency": 4,
    }
    return Work(**{**usual, **changes})


def simple_item(action: Action | None = None) -> Item:
    """An item with nothing special about it."""
    return Item(3, "key", action or Action("question"), "run:key:3")


async def answer(request) -> Generation:
    """Answer at once."""
    return Generation("answer", Usage(5, 6, 0.5))


# What travels.


@pytest.mark.parametrize(
    "error",
    [
        CheckTimeout("is nice", 2),
        Peculiar(7, where="there"),
        SelectionFailed("none", ()),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
        FileNotFoundError(2, "gone", "file"),
        KeyError("key"),
        caused_by(KeyError("key")),
        LineDead("host"),
        NotThere("module", "gone"),
        chained(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_travel_as_they_are(error):
    """Semantics 4: type, words, attributes, notes and causes, whatever their constructors want."""
    [there] = [unpack_reply(pack_reply(WorkerReply(error=error), {}), {}).error]

    assert (type(error), str(error), error.args) == (type(there), str(there), there.args)
    assert vars(error) == vars(there)
    assert [getattr(error, name, None) for name in ("errno", "name")] == [
        getattr(there, name, None) for name in ("errno", "name")
    ]
    assert repr(error.__cause__) == repr(there.__cause__)


def test_results_travel_with_the_callers_own_requirements_and_parser(run):
    """F13: requirements and actions of a reply are the caller's own objects, not copies."""
    requirement = Requirement("is long", lambda text: (len(text) > 99, "too short"))
    action = Action("question", lambda text: text.upper())
    context = Context()
    packed, shared = pack_shared(
        simple_work(strategy=MultiTurnStrategy(loop_budget=2, requirements=[requirement]), context=context),
        None,
    )
    names = WorkerJob(item=simple_item(action), allowance=None).names(shared.names())

    result = run(partial(shared.strategy.sample, action, context, answer))
    there = unpack_reply(pack_reply(WorkerReply(result=result), names), names).result

    assert packed
    assert requirement is there.best.validations[0].requirement
    assert action is there.attempts[0].action
    assert action.parser is there.attempts[1].action.parser
    assert result.attempts[1].context == there.attempts[1].context
    assert (result.usage, result.stop_reason, result.value) == (there.usage, there.stop_reason, there.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"backend": threading.Lock().acquire}, "the backend"),
        (
            {"requirements": (Requirement("locked", partial(lambda lock, text: True, threading.Lock())),)},
            "requirements",
        ),
    ],
)
def test_what_cannot_be_sent_is_named(change, named):
    """F13: which part it is, and why not."""
    with pytest.raises(NotSendable, match=f"{named} .* can't be sent between processes: TypeError"):
        pack_shared(simple_work(**change), None)


def test_an_item_that_cannot_be_sent_is_named():
    """F13: by its key."""
    with pytest.raises(NotSendable, match="the item 'key' can't be sent"):
        pack_job(
            WorkerJob(item=simple_item(Action("x", partial(lambda lock, text: text, threading.Lock()))), allowance=None)
        )


class FromSdk(RateLimited):
    """An error that holds a connection, as those of some SDKs do."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.response = threading.Lock()
        self.code = 429


class Wrapping(Exception):
    """An error whose only argument can't be pickled."""

    def __init__(self, response: object) -> None:
        self.response = response


def test_an_error_keeps_its_type_if_a_part_of_it_cannot_be_sent():
    """F13, F18: the type decides whether the run waits for the backend. What is left out is named."""
    error = FromSdk("slow down")
    error.__cause__ = ExceptionGroup("all of them", [FromSdk("one"), Wrapping(threading.Lock())])

    there = unpack_reply(pack_reply(WorkerReply(error=error), {}), {}).error

    assert (FromSdk, "slow down", 429, None) == (type(there), str(there), there.code, there.response)
    assert "not sent from the worker: response" == there.__notes__[-1]
    assert ["slow down", "one"] == [str(there), str(there.__cause__.exceptions[0])]
    assert [FromSdk, Wrapping] == [type(one) for one in there.__cause__.exceptions]


def test_a_failed_attempt_that_cannot_be_sent_does_not_hide_an_answer(run):
    """S6, F13: the result arrives, with the error of the other attempt."""

    async def fails_first(request):
        if request.subsample == 0:
            raise FromSdk("slow down")
        await checkpoint()
        return "answer"

    result = run(partial(RejectionSamplingStrategy(concurrency_budget=2).sample, "question", None, fails_first))
    there = unpack_reply(pack_reply(WorkerReply(result=result), {}), {}).result

    assert ("answer", [FromSdk]) == (there.value, [type(error) for error in there.errors])


@pytest.mark.parametrize("broken", [{"error": Refusing()}, {"result": threading.Lock()}])
def test_what_cannot_come_back_is_an_error_that_says_so(broken):
    """F13: not a worker that seems to have died."""
    reply = unpack_reply(pack_reply(WorkerReply(**broken, usage=Usage(1, 2)), {}), {})
    assert (NotSendable, Usage(1, 2)) == (type(reply.error), reply.usage)


@pytest.mark.parametrize(("error", "named"), [(Unreadable("words"), "Unreadable: words"), (Mute("x"), "Mute")])
def test_an_error_that_can_not_be_read_is_named(error, named):
    """F13: its type and its words, beside the reason why it can't be read."""
    there = unpack_reply(pack_reply(WorkerReply(error=error), {}), {}).error
    assert f"the error {named} can't be sent between processes: RuntimeError: it can't be made" == str(there)


@pytest.mark.parametrize("error", [Mute(), Refusing()])
def test_an_error_without_a_text_is_named(error):
    """F13: the reply gets there."""
    assert isinstance(unpack_reply(pack_reply(WorkerReply(error=error), {}), {}).error, NotSendable)


# A worker.


async def with_worker(use: Callable[[Worker], Awaitable], work: Work, factory: Callable | None = None):
    """Have a worker for a while."""
    worker = Worker()
    packed, _ = pack_shared(work, factory)
    async with anyio.create_task_group() as group:
        group.start_soon(worker.serve, packed, versions())
        result = await use(worker)
        await worker.close()
    return result


async def reply_to(worker: Worker, call: str = "1", allowance: Allowance | None = None) -> WorkerReply:
    """Have it sample an item."""
    job = WorkerJob(item=simple_item(), allowance=allowance)
    reply = await worker.sample(call, pack_job(job))
    return unpack_reply(reply, job.names(worker._names))


async def slow(request) -> Generation:
    """Take long, and say what was used by then."""
    report_usage(Usage(3, 1))
    await anyio.sleep(3600)
    return Generation("late")


async def name_parent(request) -> str:
    """Tell who asks."""
    return str(current().parent_id)


def test_a_worker_says_what_became_of_an_item_and_what_it_spent(run):
    """F13: a worker returns the result, the usage and the budget's counts, with the item as parent."""
    reply = run(with_worker, reply_to, simple_work())
    assert ("answer", Usage(5, 6, 0.5), 1, 1, 11) == (
        reply.result.value,
        reply.usage,
        reply.attempts,
        reply.requests,
        reply.tokens,
    )
    assert "run:key:3" == run(with_worker, reply_to, simple_work(backend=name_parent)).result.value


def test_a_call_that_is_stopped_replies_when_it_has(run):
    """F13: a cancelled item returns its usage, and nothing of it keeps running."""

    async def stop(worker: Worker) -> WorkerReply:
        async with anyio.create_task_group() as group:
            group.start_soon(stop_later, worker)
            return await reply_to(worker)

    async def stop_later(worker: Worker) -> None:
        await anyio.sleep(1)
        await worker.stop("1")

    reply = run(with_worker, stop, simple_work(backend=slow))
    assert (None, None, Usage(3, 1), 1) == (reply.result, reply.error, reply.usage, reply.requests)


def test_a_call_may_be_stopped_before_it_begins(run):
    """F13: should the two messages overtake each other, nothing is asked."""

    async def stop_first(worker: Worker) -> WorkerReply:
        await worker.stop("1")
        return await reply_to(worker)

    reply = run(with_worker, stop_first, simple_work(backend=slow))
    assert (None, None, 0) == (reply.result, reply.error, reply.requests)


def test_a_worker_keeps_to_its_allowance(run):
    """I10: no attempt beyond it, and the result says why."""
    strategy = RejectionSamplingStrategy(loop_budget=9, requirements=[lambda text: False])
    reply = run(with_worker, partial(reply_to, allowance=Allowance(requests=2)), simple_work(strategy=strategy))
    assert (2, "budget") == (reply.requests, reply.result.stop_reason)


def no_backend() -> None:
    """Make nothing."""
    raise LookupError("nothing here")


def test_a_worker_that_cannot_start_says_why(run):
    """F13: a worker that could not start reports its error to every caller."""

    async def ask(worker: Worker) -> tuple[WorkerReply, WorkerReply]:
        return unpack_reply(await worker.ready(), {}), await reply_to(worker)

    ready, reply = run(with_worker, ask, simple_work(), no_backend)
    assert (LookupError, LookupError) == (type(ready.error), type(reply.error))


# The budget.


def test_all_items_together_never_hold_more_than_there_is(run):
    """I10: an item waits for room for its worst case, and the last one gets what is left."""
    budget = Budget(requests=10, tokens=100_000, cost=1.0)
    work = simple_work(strategy=RejectionSamplingStrategy(loop_budget=4), budget=budget, max_concurrency=4)
    log: list = []

    async def one(allowances: Allowances, number: int) -> None:
        grant = await allowances.grant(simple_item())
        log.append((number, anyio.current_time() // 1, grant.allowance.requests))
        assert budget.reserved.requests <= 10 - budget.charged.requests
        await anyio.sleep(number + 1)
        allowances.settle(grant, WorkerReply(usage=Usage(2, 1, 0.01), attempts=1, requests=1, tokens=3))

    async def all_of_them() -> None:
        allowances = Allowances(work)
        began = anyio.current_time() // 1
        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(one, allowances, number, name=f"item {number}")
        log[:] = [(number, at - began, requests) for number, at, requests in log]

    run(all_of_them)

    assert 10 == len(log)
    # Two at a time have room for four requests each; and of what was left over, the first got a share.
    assert [(0.0, 5), (0.0, 4)] == [(at, requests) for _, at, requests in log[:2]]
    assert log[2][1] > 0.0
    assert (10, 0, 30) == (budget.requests_made, budget.reserved.requests, budget.tokens_charged)
    assert 1 == log[-1][2]


def test_what_a_dead_worker_spent_is_taken_to_be_the_worst(run):
    """I10: if a worker dies, its item is charged the worst case."""
    budget = Budget(requests=10)
    work = simple_work(strategy=RejectionSamplingStrategy(loop_budget=4), budget=budget)

    async def lose() -> None:
        allowances = Allowances(work)
        allowances.settle(await allowances.grant(simple_item()), None)

    run(lose)
    assert (4, 0) == (budget.requests_made, budget.reserved.requests)


def test_a_deadline_goes_along(run):
    """Semantics 9: a worker has as much time as is left, and none is next to none."""

    async def grants() -> list[float]:
        allowances = Allowances(simple_work(budget=Budget(deadline_s=10)))
        left = []
        for _ in range(3):
            left.append((await allowances.grant(simple_item())).allowance.deadline_s)
            await anyio.sleep(8)
        return left

    assert [10, 2, 1e-6] == [pytest.approx(left) for left in run(grants)]


# The thread.


def test_the_thread_runs_what_blocks_and_brings_futures_home(run_for_real):
    """A wait ends with its future, passes errors on, and leaves the future alone when cancelled."""

    async def use() -> None:
        ready: Future = Future()
        never: Future = Future()
        async with BridgeThread("test") as bridge:
            assert bridge._thread.ident == await bridge.run(threading.get_ident)
            threading.Timer(0.01, ready.set_result, ["done"]).start()
            assert "done" == await bridge.wait(ready)
            with anyio.move_on_after(0.01) as scope:
                await bridge.wait(never)
            assert scope.cancelled_caught
            assert not never.cancelled()
            with pytest.raises(ZeroDivisionError):
                await bridge.run(lambda: 1 / 0)
        assert not bridge._thread.is_alive()

    run_for_real(use)


# Bad input.


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"actors": 0}, ValueError, "actors must be >= 1, got 0"),
        ({"actors": "two"}, TypeError, "actors must be an int >= 1"),
        ({"address": ""}, ValueError, "address must not be empty"),
        ({"backend_factory": "openai"}, TypeError, "backend_factory must be a function"),
        ({"actor_options": [1]}, TypeError, "actor_options must be a mapping"),
        ({"init_options": 3}, TypeError, "init_options must be a mapping"),
        ({"stop_grace_s": 0}, ValueError, "stop_grace_s must be > 0"),
        ({"start_timeout_s": 0}, ValueError, "start_timeout_s must be > 0"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    """Semantics of errors: which argument, what it is, what it may be."""
    with pytest.raises(error, match=message):
        RayEngine(**arguments)


# The connection.


class FakeRay:
    """Counts how often it is started and stopped."""

    def __init__(self):
        self.calls = []
        self._private = SimpleNamespace(worker=SimpleNamespace())

    connected_to = None

    def is_initialized(self):
        return self.connected_to is not None

    def get_runtime_context(self):
        return SimpleNamespace(gcs_address=self.connected_to)

    def init(self, address, **options):
        self.calls.append(f"init {address}")

    def shutdown(self):
        self.calls.append("shutdown")


@pytest.fixture
def fake_ray(monkeypatch):
    fake = FakeRay()
    monkeypatch.setattr(connection_module, "ray", fake)
    return fake


def test_the_last_user_closes_the_connection(fake_ray):
    """F13: runs at once share one Ray, and the one that ends first leaves it to the others."""
    connection = Connection()
    assert [True, True] == [connection.acquire(None, 1, {"_temp_dir": "/tmp/r"}) for _ in range(2)]  # noqa: S108
    connection.release()
    assert ["init local"] == fake_ray.calls
    connection.release()
    assert ["init local", "shutdown"] == fake_ray.calls
    assert "sampling-ray-keeper" not in [thread.name for thread in threading.enumerate()]


def test_each_event_loop_that_uses_an_engine_has_a_thread_of_its_own(monkeypatch):
    """F13: several threads, each with its event loop, may share an engine, on asyncio and on trio at once."""
    connection = SimpleNamespace(acquire=lambda *_: True, release=lambda: None)
    monkeypatch.setattr(cluster_module, "shared_connection", connection)
    engine, both_in = RayEngine(actors=1), threading.Barrier(2, timeout=60)

    async def use() -> bool:
        async with engine:
            await anyio.to_thread.run_sync(both_in.wait)
            return await engine._cluster.thread.run(lambda: True)

    with ThreadPoolExecutor() as pool:
        used = [pool.submit(anyio.run, use, backend=backend) for backend in ("asyncio", "trio")]
    assert [True, True] == [future.result() for future in used]


def test_an_address_where_nobody_listens_is_refused_at_once(fake_ray):
    """F13: Ray itself would be silent for a quarter of an hour, and could not be interrupted."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    connection = Connection()
    with pytest.raises(ConnectFailed, match=f"no Ray cluster answers at 127.0.0.1:{port}") as caught:
        connection.acquire(f"127.0.0.1:{port}", 1, {})
    assert "Check the address" in caught.value.hint
    assert "init" not in " ".join(fake_ray.calls)


def test_a_cluster_that_refuses_the_connection_is_named(fake_ray, monkeypatch):
    """F13: a wrong token, for instance. Ray's own error does not say what to check."""

    def refuse(address, **options):
        raise ConnectionError("Failed to connect")

    monkeypatch.setattr(fake_ray, "init", refuse)
    with pytest.raises(ConnectFailed, match="can't connect to Ray at auto: Failed to connect") as caught:
        Connection().acquire("auto", 1, {})
    assert "RAY_AUTH_TOKEN" in caught.value.hint


def test_an_address_where_somebody_listens_is_used(fake_ray):
    """F13: whoever it is, Ray finds out."""
    connection = Connection()
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert connection.acquire(address, 1, {})
    connection.release()
    assert [f"init {address}", "shutdown"] == fake_ray.calls


@pytest.mark.parametrize(("address", "warnings"), [("10.0.0.1:6379", 1), ("10.0.0.2:6379", 0), (None, 0), ("auto", 0)])
def test_a_ray_of_the_program_is_used_and_left_alone(fake_ray, address, warnings):
    """F13: if it is not the one that the engine asks for, a warning says so."""
    fake_ray.connected_to = "10.0.0.2:6379"
    with structlog.testing.capture_logs() as logged:
        assert not Connection().acquire(address, 1, {})
    assert warnings == len([line for line in logged if line["event"] == "ray_already_connected"])
    assert [] == fake_ray.calls
