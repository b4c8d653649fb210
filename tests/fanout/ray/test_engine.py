"""The Ray engine on a cluster in this process, whose workers die when told to, in virtual time."""

from contextvars import ContextVar
from functools import partial
from importlib.metadata import PackageNotFoundError

import anyio
import pytest
from anyio.lowlevel import checkpoint

from sampling import Action, Budget, Generation, RejectionSamplingStrategy, Usage, fan_out
from sampling.errors import NotSendable, WorkerLost

pytest.importorskip("ray")

from sampling.fanout.ray import RayEngine
from sampling.fanout.ray import _cluster as cluster_module
from sampling.fanout.ray import _wire as wire_module
from sampling.fanout.ray._cluster import ActorLost, Cluster, Stored
from sampling.fanout.ray._wire import versions
from sampling.fanout.ray._worker import Worker

ONCE = RejectionSamplingStrategy()
process: ContextVar["FakeActor"] = ContextVar("process")
seen: list = []


class Call:
    def __init__(self):
        self.done = anyio.Event()
        self.reply = None
        self.error = None
        self.lost = True


class FakeActor:
    """A worker in this process. When it dies, its calls end without a reply."""

    def __init__(self, group, shared, driver_versions):
        self.group = group
        self.scopes = set()
        self.calls = set()
        self.alive = True
        self.worker = Worker()
        self.serving = self.submit("serve", shared, driver_versions)

    def submit(self, method, *args):
        call = Call()
        if not self.alive:
            call.done.set()
            return call
        self.calls.add(call)
        self.group.start_soon(self._run, call, method, *args)
        return call

    async def _run(self, call, method, *args):
        process.set(self)
        with anyio.CancelScope() as scope:
            self.scopes.add(scope)
            if not self.alive:
                return
            call.reply = await getattr(self.worker, method)(*args)
            call.lost = not self.alive
        self.scopes.discard(scope)
        call.done.set()

    async def result_of(self, call):
        await call.done.wait()
        if call.lost:
            raise ActorLost("gone")
        return call.reply

    async def call(self, method, *args):
        return await self.result_of(self.submit(method, *args))

    async def close(self):
        self.submit("close")
        await self.result_of(self.serving)

    def die(self):
        self.alive = False
        for call in self.calls:
            call.done.set()
        for scope in self.scopes:
            scope.cancel()

    async def kill(self):
        self.die()

    def kill_soon(self):
        self.die()


class FakeCluster:
    """A cluster of fake actors."""

    def __init__(self, driver_versions=None):
        self.actors = []
        self.stored = []
        self.versions = driver_versions or versions()

    async def __aenter__(self):
        self.group = anyio.create_task_group()
        await self.group.__aenter__()
        return self

    async def __aexit__(self, *_):
        for actor in self.actors:
            actor.die()
        self.group.cancel_scope.cancel()
        await self.group.__aexit__(None, None, None)

    async def share(self, packed):
        self.stored.append(Stored(packed))
        return self.stored[-1]

    async def unsatisfiable(self, options):
        return None

    def new_actor(self, shared, *, max_calls, options):
        self.actors.append(FakeActor(self.group, shared.ref, self.versions))
        return self.actors[-1]


def engine(actors=2, driver_versions=None, **options):
    made = RayEngine(actors=actors, **options)
    made._cluster = FakeCluster(driver_versions)
    return made


def number_in(request):
    return int(request.messages[0].content)


async def everyone_dies_once(request):
    """Kill all workers when the last of four items arrives for the first time, and answer after a second."""
    seen.append(number_in(request))
    if len(seen) == 4:
        for actor in current_cluster[0].actors:
            actor.die()
    await anyio.sleep(1)
    return Generation("yes", Usage(1, 1))


current_cluster: list = []


@pytest.fixture(autouse=True)
def nothing_seen():
    seen.clear()
    current_cluster.clear()


def numbers(count):
    return [str(number) for number in range(count)]


async def all_die_at_six(request):
    """Kill all workers when the sixth request arrives, and answer after a second."""
    seen.append(number_in(request))
    if len(seen) == 6:
        for actor in current_cluster[0].actors:
            actor.die()
    await anyio.sleep(1)
    return Generation("yes", Usage(1, 1))


@pytest.mark.parametrize("options", [{}, {"actor_options": {"num_cpus": 1}}], ids=["isolated", "with resources"])
def test_the_death_of_all_workers_with_a_budget_is_no_deadlock(run, options):
    """F13: items that wait for a worker do not hold the budget that those of dead workers need."""
    made = engine(**options)
    current_cluster.append(made._cluster)
    # Six requests are lost with their workers. The rest is enough for their second tries, and not for all new items.
    budget = Budget(requests=12)
    settings = {"engine": made, "budget": budget, "max_concurrency": 6, "on_error": "continue"}
    result = run(partial(fan_out, ONCE, numbers(20), None, all_die_at_six, **settings))
    assert ("halted", "budget", 6) == (result.status, result.stop_reason, result.counts()["succeeded"])
    assert (12, 0, 0) == (budget.requests_made, budget.reserved.requests, budget.reserved.tokens)
    assert 2 == max(seen.count(number) for number in range(20))


def test_items_of_a_dead_worker_run_concurrently_again(run):
    """F13: each alone on a worker, but not one after another."""
    made = engine(actors=2)
    current_cluster.append(made._cluster)

    async def main():
        began_at = anyio.current_time()
        result = await fan_out(ONCE, numbers(4), None, everyone_dies_once, engine=made, max_concurrency=4)
        return result, anyio.current_time() - began_at

    result, took_s = run(main)
    assert 4 == result.counts()["succeeded"]
    assert 1 == pytest.approx(took_s, abs=0.5)
    assert 8 == len(seen)


async def kills_its_worker(request):
    seen.append(number_in(request))
    if number_in(request) == 2:
        process.get().die()
    await anyio.sleep(1)
    return "yes"


def test_an_item_that_kills_its_workers_takes_nobody_with_it(run):
    """F13, row 67: and every other item is asked at most twice."""
    settings = {"engine": engine(), "max_concurrency": 4, "on_error": "continue", "outage_grace_s": 0}
    result = run(partial(fan_out, ONCE, numbers(9), None, kills_its_worker, **settings))
    assert [2] == [one.index for one in result.outcomes if one.status != "succeeded"]
    assert WorkerLost is type(result.outcomes[2].error)
    assert 2 == max(seen.count(number) for number in range(9))


async def asks_to_exit(request):
    if number_in(request) == 1:
        raise SystemExit(7)
    await anyio.sleep(1)
    return "yes"


def test_a_call_that_exits_ends_the_run_as_it_does_here(run):
    """F13: SystemExit on a worker is raised by the driver, and nobody waits for ever."""
    with pytest.raises(SystemExit) as caught:
        run(partial(fan_out, ONCE, numbers(4), None, asks_to_exit, engine=engine(), max_concurrency=4))
    assert 7 == caught.value.code


def test_another_version_on_a_worker_is_refused(run):
    """F13: before anything is unpickled, and the error says which."""
    other = {**versions(), "sampling": "99.0"}
    with pytest.raises(WorkerLost, match=r"a worker has sampling .* instead of 99.0") as caught:
        run(partial(fan_out, ONCE, numbers(4), None, kills_its_worker, engine=engine(driver_versions=other)))
    assert "runtime_env" in caught.value.hint
    assert [] == seen


class Answers:
    """The thread of a cluster that answers from a table."""

    def __init__(self, **answers):
        self.answers = answers

    async def run(self, function, *args):
        return self.answers[function.__name__]


def test_options_that_no_node_can_satisfy_are_explained(run, monkeypatch):
    """F13: what is wanted, and what there is."""
    node = {"Alive": True, "Resources": {"CPU": 4.0, "memory": 1e9}}
    cluster = Cluster(None, 2, {})
    monkeypatch.setattr(Cluster, "thread", Answers(nodes=[node], available_resources={"CPU": 1.0}))
    assert None is run(cluster.unsatisfiable, {"num_cpus": 2})
    assert "each worker needs 1 GPU, and the most that a node has is 0 GPU" == run(
        cluster.unsatisfiable, {"num_gpus": 1}
    )
    assert "each worker needs 2 CPU, and 1 CPU are free in the whole cluster" == run(
        cluster.why_not_placed, {"num_cpus": 2}
    )
    assert cluster_module.RESOURCES


class NeverPlaced(FakeCluster):
    """A cluster without room for any worker."""

    async def why_not_placed(self, options):
        return "each worker needs 9 GPU, and the most that a node has is 0 GPU"

    def new_actor(self, shared, *, max_calls, options):
        actor = super().new_actor(shared, max_calls=max_calls, options=options)
        actor.submit = lambda *_: Call()
        return actor


def test_workers_that_never_start_say_what_is_missing(run):
    """F13: instead of a silent wait."""
    made = RayEngine(actors=1, actor_options={"num_gpus": 9}, start_timeout_s=60, stop_grace_s=1)
    made._cluster = NeverPlaced()
    with pytest.raises(WorkerLost, match="not started within 60 s: each worker needs 9 GPU") as caught:
        run(partial(fan_out, ONCE, numbers(1), None, kills_its_worker, engine=made))
    assert "start_timeout_s" in caught.value.hint


def test_an_item_that_kills_its_workers_is_no_outage(run):
    """F13, F18: it runs at most once more, however long the run would wait for its backend."""
    settings = {"engine": engine(), "max_concurrency": 1, "on_error": "continue"}
    result = run(partial(fan_out, ONCE, numbers(3), None, kills_its_worker, **settings))
    assert ["succeeded", "succeeded", "errored"] == [one.status for one in result.outcomes]
    assert WorkerLost is type(result.outcomes[2].error)
    assert [0, 1, 2, 2] == seen


class NoRoomFor(NeverPlaced):
    """A cluster that starts some workers, and then no more for a time."""

    def __init__(self, placed, until_s=float("inf")):
        super().__init__()
        self.placed = placed
        self.until_s = until_s

    def new_actor(self, shared, *, max_calls, options):
        has_room = len(self.actors) < self.placed or anyio.current_time() - self.began_at >= self.until_s
        return (FakeCluster if has_room else NeverPlaced).new_actor(self, shared, max_calls=max_calls, options=options)

    async def __aenter__(self):
        self.began_at = anyio.current_time()
        return await super().__aenter__()


async def first_worker_dies(request):
    """Kill the first worker when it has items, and answer after a second."""
    seen.append(number_in(request))
    await anyio.sleep(0.5)
    current_cluster[0].actors[0].die()
    await anyio.sleep(0.5)
    return Generation("yes", Usage(1, 1))


def without_room(cluster, **options):
    made = RayEngine(start_timeout_s=60, stop_grace_s=1, **options)
    made._cluster = cluster
    current_cluster.append(cluster)
    return made


@pytest.mark.parametrize("options", [{}, {"actor_options": {"num_cpus": 1}}], ids=["isolated", "with resources"])
def test_a_worker_that_can_not_be_replaced_is_made_up_for_by_the_others(run, options):
    """F13: its items have an error that says why, and all others are answered."""
    made = without_room(NoRoomFor(2), actors=2, **options)
    settings = {"engine": made, "max_concurrency": 4, "on_error": "continue"}
    result = run(partial(fan_out, ONCE, numbers(40), None, first_worker_dies, **settings))
    lost = [one for one in result.outcomes if one.status != "succeeded"]
    assert 2 == len(lost)
    assert {
        "the worker that ran this item died, and no other one started: a worker has not started within 60 s: "
        "each worker needs 9 GPU, and the most that a node has is 0 GPU"
    } == {str(one.error) for one in lost}
    assert 1 == max(seen.count(number) for number in range(40))


def test_a_run_without_a_worker_waits_as_in_an_outage(run):
    """F13, F18: a cluster that has room again after a while costs no item but those of the dead worker."""
    made = without_room(NoRoomFor(1, until_s=200), actors=1)
    settings = {"engine": made, "max_concurrency": 1, "on_error": "continue"}
    result = run(partial(fan_out, ONCE, numbers(9), None, answers_first_then_dies, **settings))
    assert {"succeeded": 8, "failed": 0, "errored": 1} == result.counts()


def test_a_run_without_a_worker_ends_with_the_reason(run):
    """F13: instead of a silent wait, if the cluster never has room again."""
    made = without_room(NoRoomFor(1), actors=1)
    settings = {"engine": made, "max_concurrency": 1, "on_error": "continue"}
    result = run(partial(fan_out, ONCE, numbers(9), None, answers_first_then_dies, **settings))
    assert {"succeeded": 1, "failed": 0, "errored": 8} == result.counts()
    assert all("each worker needs 9 GPU" in str(one.error) for one in result.outcomes[1:])


async def answers_first_then_dies(request):
    """Answer item 0, and kill the first worker with item 1."""
    seen.append(number_in(request))
    if number_in(request) == 1:
        current_cluster[0].actors[0].die()
    await anyio.sleep(0.1)
    return "yes"


in_flight: list = []


async def counts_in_flight(request):
    """Kill all workers when the sixth request arrives, and note how many requests are in flight."""
    seen.append(number_in(request))
    in_flight.append(in_flight[-1] + 1)
    try:
        if len(seen) == 6:
            for actor in current_cluster[0].actors:
                actor.die()
        await anyio.sleep(1)
    finally:
        in_flight.append(in_flight[-1] - 1)
    return "yes"


def test_second_tries_respect_the_limit_of_requests(run):
    """F13, F19: workers that run items again share the requests of those that died."""
    in_flight[:] = [0]
    made = engine(actors=2)
    current_cluster.append(made._cluster)
    strategy = RejectionSamplingStrategy(concurrency_budget=3)
    settings = {"engine": made, "max_concurrency": 12, "max_requests": 6}
    result = run(partial(fan_out, strategy, numbers(20), None, counts_in_flight, **settings))
    assert 20 == result.counts()["succeeded"]
    assert 6 == max(in_flight)
    assert len(made._cluster.actors) > 4


def test_items_that_run_again_may_be_billed_twice(run, tmp_path):
    """F13, row 59: the result names the items that were on the worker that died, and no others."""
    made = engine(actors=2)
    current_cluster.append(made._cluster)
    journal = tmp_path / "run.db"
    settings = {"engine": made, "max_concurrency": 4, "journal": journal}
    result = run(partial(fan_out, ONCE, numbers(6), None, everyone_dies_once, **settings))
    assert 6 == result.counts()["succeeded"]
    assert (0, 1, 2, 3) == result.maybe_billed_twice


class OnlyThere:
    """A value that can be pickled, and not unpickled."""

    def __reduce__(self):
        return _refuse, ()


def _refuse():
    raise LookupError("only there")


async def priced(request):
    return Generation("yes", Usage(10, 10, 0.5))


def test_a_result_that_can_not_be_read_is_paid_for(run):
    """F13, I10: the driver learns what was spent, even if the value stays on the worker."""
    budget = Budget(requests=10)
    items = [Action(str(number), lambda text: OnlyThere()) for number in range(2)]
    settings = {"engine": engine(), "budget": budget, "on_error": "continue"}
    result = run(partial(fan_out, ONCE, items, None, priced, **settings))
    assert [NotSendable] * 2 == [type(one.error) for one in result.outcomes]
    assert Usage(20, 20, 1.0) == result.usage == budget.spent
    assert 2 == budget.requests_made


def test_nothing_stays_in_the_store_after_a_run(run):
    """F13: whoever keeps a traceback of the run must not keep an object of the cluster."""
    made = engine()
    run(partial(fan_out, ONCE, numbers(2), None, priced, engine=made, max_requests=4))
    assert [None, None] == [stored.ref for stored in made._cluster.stored]


def test_a_worker_without_metadata_of_the_library_is_used(run, monkeypatch):
    """F13: Ray can send the library as a module, which has no version and is that of the driver."""
    made = engine(driver_versions=versions())

    def not_installed(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(wire_module, "version", not_installed)
    assert ["Python"] == list(versions())
    assert 2 == run(partial(fan_out, ONCE, numbers(2), None, priced, engine=made)).counts()["succeeded"]


class NotInstalled(FakeCluster):
    """A cluster whose workers can't import the library."""

    def new_actor(self, shared, *, max_calls, options):
        actor = super().new_actor(shared, max_calls=max_calls, options=options)
        actor.call = self.fail
        return actor

    async def fail(self, method):
        await checkpoint()
        raise ActorLost("error raised in its creation task:\n  ...\nModuleNotFoundError: No module named 'sampling'\n")


def test_a_worker_without_the_library_says_so(run):
    """F13: in one line, and with what to do."""
    made = engine()
    made._cluster = NotInstalled()
    with pytest.raises(WorkerLost, match=r"^a worker can't start, because it has no module 'sampling'") as caught:
        run(partial(fan_out, ONCE, numbers(2), None, priced, engine=made))
    assert "runtime_env" in caught.value.hint


def test_a_lost_worker_is_charged_no_more_than_it_could_spend(run):
    """I10, F13: an item that got the rest of the budget, less than its worst case, can't exceed it."""
    budget = Budget(requests=3)
    strategy = RejectionSamplingStrategy(loop_budget=2)
    settings = {"engine": engine(actors=1), "budget": budget, "max_concurrency": 1, "on_error": "continue"}
    # Items 0 and 1 take a request each, and item 2 kills its worker with the last one.
    result = run(partial(fan_out, strategy, numbers(5), None, kills_its_worker, **settings))
    assert ("halted", "budget") == (result.status, result.stop_reason)
    assert (3, 0) == (budget.requests_made, budget.reserved.requests)
    assert [0, 1, 2] == seen


class OnlyHere:
    """An item's own parser that a worker can't read."""

    def __call__(self, text):
        return text

    def __reduce__(self):
        return _refuse, ()


def test_an_item_that_a_worker_can_not_read_costs_nothing(run):
    """I10, F13: its error has its own type and says where it was raised, and nothing is charged."""
    budget = Budget(requests=10)
    settings = {"engine": engine(), "budget": budget, "on_error": "continue"}
    result = run(partial(fan_out, ONCE, [Action("0", OnlyHere()), "1"], None, priced, **settings))
    assert ["errored", "succeeded"] == [one.status for one in result.outcomes]
    assert LookupError is type(result.outcomes[0].error)
    assert "raised on a worker" in result.outcomes[0].error.__notes__[0]
    assert (1, 0) == (budget.requests_made, budget.reserved.requests)
