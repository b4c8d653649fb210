"""C: the closed loop. Users who wait for their answers, and think before they ask again."""

import math
from collections import Counter, defaultdict
from functools import partial

import anyio
import pytest

from sampling import Context, FatalError, Generation, RejectionSamplingStrategy, Request
from sampling.load import (
    Arrival,
    ClosedLoop,
    LoadReport,
    LoadRun,
    OpenLoop,
    current_arrival,
    mix,
    run_load,
    strategy_workload,
)
from sampling.testing import cancel_at_every_step, run_virtual
from tests.load.seeded import LOOPS, run_seeded


class Crowd:
    """A workload that remembers when each user asked and was answered."""

    def __init__(self, takes_s: float = 0.25, *, fails: frozenset[int] = frozenset()) -> None:
        self.takes_s = takes_s
        self.fails = fails
        self.asked: dict[int, list[float]] = defaultdict(list)
        self.answered: dict[int, list[float]] = defaultdict(list)
        self.draws: dict[int, list[float]] = defaultdict(list)

    async def __call__(self, arrival: Arrival) -> None:
        assert arrival.user is not None
        assert len(self.asked[arrival.user]) == len(self.answered[arrival.user]), "one request in flight"
        self.asked[arrival.user].append(anyio.current_time())
        self.draws[arrival.user].append(arrival.rng.random())
        await anyio.sleep(self.takes_s * (1 + arrival.user))
        self.answered[arrival.user].append(anyio.current_time())
        if arrival.user in self.fails:
            raise RuntimeError("no")


def test_the_next_request_comes_think_time_after_the_last_answer(run):
    """C1: each user has exactly one request in flight, and arrival n + 1 is at completion n + think time."""
    crowd = Crowd()
    run(run_load, crowd, ClosedLoop(users=4, horizon_s=30, think_time_s=0.5))
    assert 4 == len(crowd.asked)
    for user, asked in crowd.asked.items():
        assert asked[1:] == [done + 0.5 for done in crowd.answered[user][: len(asked) - 1]]


def test_first_requests_are_spread_over_the_think_time(run):
    """C2: user u starts at u * think_time / users."""
    crowd = Crowd(10.0)
    run(run_load, crowd, ClosedLoop(users=8, horizon_s=5, think_time_s=2.0))
    assert {user: user * 0.25 for user in range(8)} == {user: asked[0] for user, asked in crowd.asked.items()}


def test_without_think_time_all_start_at_once(run):
    """C2: without think time all start at once."""
    crowd = Crowd(10.0)
    run(run_load, crowd, ClosedLoop(users=5, horizon_s=5))
    assert [[0.0]] * 5 == list(crowd.asked.values())


@pytest.mark.parametrize(
    ("users", "requests", "sent", "active"), [(200, 100, 100, 100), (50, 50, 50, 50), (3, 10, 10, 3), (5, 0, 0, 0)]
)
@pytest.mark.parametrize("think_time_s", [0.0, 0.25])
def test_requests_cap_first_requests_and_follow_ups_together(run, users, requests, sent, active, think_time_s):
    """C3: a budget of zero means none, and is not "unlimited"."""
    crowd = Crowd(0.0)
    report = run(run_load, crowd, ClosedLoop(users=users, requests=requests, think_time_s=think_time_s))
    assert (sent, sent) == (report.admitted, report.scheduled)
    assert active == len(crowd.asked)
    assert {"completed": 0, "cancelled": 0, "horizon": 0, "budget": users} == report.user_ends


def test_without_requests_a_horizon_is_needed():
    """C3: without requests a horizon is needed."""
    with pytest.raises(ValueError, match="needs an end: set requests, or horizon_s, or both"):
        ClosedLoop(users=5)


def test_no_request_starts_after_the_horizon(run):
    """C4: at it, one still may."""
    crowd = Crowd(0.5)
    report = run(run_load, crowd, ClosedLoop(users=1, horizon_s=3.0, think_time_s=0.5))
    assert [0.0, 1.0, 2.0, 3.0] == crowd.asked[0]
    assert {"completed": 0, "cancelled": 0, "horizon": 1, "budget": 0} == report.user_ends


def test_horizon_and_requests_whichever_comes_first(run):
    """C4: horizon and requests whichever comes first."""
    by_requests = run(run_load, Crowd(0.5), ClosedLoop(users=1, horizon_s=100.0, requests=3))
    by_horizon = run(run_load, Crowd(0.5), ClosedLoop(users=1, horizon_s=1.0, requests=300))
    assert (3, 3) == (by_requests.admitted, by_horizon.admitted)


def test_every_user_ends_in_exactly_one_way(run):
    """C5: the counts add up to the users, and with `on_error="cancel"` a failed request ends its user."""
    crowd = Crowd(fails=frozenset({1, 2}))
    report = run(run_load, crowd, ClosedLoop(users=6, horizon_s=10, on_error="cancel"))
    assert {"completed": 0, "cancelled": 2, "horizon": 4, "budget": 0} == report.user_ends
    assert [1, 1] == [len(crowd.asked[user]) for user in (1, 2)]


def test_one_error_does_not_shrink_the_load_for_good(run):
    """C5: by default a failed request costs one request, and its user goes on."""
    crowd = Crowd(fails=frozenset({0}))
    report = run(run_load, crowd, ClosedLoop(users=2, horizon_s=10))
    assert {"completed": 0, "cancelled": 0, "horizon": 2, "budget": 0} == report.user_ends
    assert len(crowd.asked[0]) > 20


def test_a_user_with_nothing_left_to_ask_is_completed(run):
    """C5: a finite workload."""

    async def ask(request: Request) -> str:
        return "yes"

    workload = strategy_workload(RejectionSamplingStrategy(), iter(["a", "b", "c"]), None, ask)
    report = run(run_load, workload, ClosedLoop(users=2, horizon_s=10, think_time_s=1))
    assert 3 == report.admitted
    assert {"completed": 2, "cancelled": 0, "horizon": 0, "budget": 0} == report.user_ends


def test_no_user_is_abandoned_wherever_it_is_cancelled():
    """C5: at every step, on both loops, the ends add up to the users and the counts add up."""
    runs: list[LoadRun] = []

    async def scenario(world) -> None:
        async def workload(arrival: Arrival) -> None:
            await anyio.sleep(world.latency())

        runs.append(LoadRun(workload, ClosedLoop(users=3, requests=7, think_time_s=0.5)))
        await runs[-1].run()

    def check(world, outcome) -> None:
        report = runs[-1].report()
        if not report.admitted and not report.interrupted:
            return  # it was cancelled before it began
        assert 3 == sum(report.user_ends.values())
        assert report.admitted == report.succeeded + report.failed + report.cancelled

    cancel_at_every_step(scenario, check=check)


def test_a_users_think_time_holds_up_nobody_else(run):
    """C5: the think time of one user does not delay another."""
    alone, together = Crowd(0.5), Crowd(0.5)
    run(run_load, alone, ClosedLoop(users=1, horizon_s=20, think_time_s=3))
    run(run_load, together, ClosedLoop(users=3, horizon_s=20, think_time_s=3))
    assert alone.asked[0] == together.asked[0]


@pytest.mark.parametrize("loop", LOOPS)
def test_the_same_seed_gives_the_same_everything(loop):
    """C6: two runs are byte-identical."""
    profile = ClosedLoop(users=7, requests=60, think_time_s=0.25)
    first, second = (run_seeded(loop, run_load, Crowd(0.25), profile, seed=4) for _ in range(2))
    assert first.to_json(samples=True) == second.to_json(samples=True)


def test_a_users_stream_is_independent_of_the_other_users(run):
    """C6: users that never start or are added change no draw of the others."""
    few, many, other_seed = Crowd(), Crowd(), Crowd()
    run(run_load, few, ClosedLoop(users=2, requests=10), seed=4)
    run(run_load, many, ClosedLoop(users=50, requests=12), seed=4)
    run(run_load, other_seed, ClosedLoop(users=2, requests=10), seed=5)
    for user in range(2):
        shared = min(len(few.draws[user]), len(many.draws[user]))
        assert few.draws[user][:shared] == many.draws[user][:shared]
        assert few.draws[user] != other_seed.draws[user]
    assert not set(few.draws[0]) & set(few.draws[1])
    assert 12 == sum(map(len, many.draws.values()))


def test_each_request_of_a_user_gets_fresh_input(run):
    """C7: a user keeps its id, gets fresh input, and users begin at different inputs."""
    asked: list[tuple[int, tuple[str, ...]]] = []

    async def ask(request: Request) -> str:
        from sampling.load import current_arrival

        asked.append((current_arrival().user, tuple(message.content for message in request.messages)))
        return "yes"

    workload = strategy_workload(RejectionSamplingStrategy(), ["a", "b", "c"], Context(), ask)
    run(run_load, workload, ClosedLoop(users=2, requests=8, think_time_s=1))
    assert [("a",), ("b",), ("c",), ("a",)] == [messages for user, messages in asked if user == 0]
    assert [("b",), ("c",), ("a",), ("b",)] == [messages for user, messages in asked if user == 1]


def test_a_conversation_accumulates(run):
    """C7: question and answer of each user's own, and nothing of the others."""
    lengths: dict[int, list[int]] = defaultdict(list)

    async def ask(request: Request) -> Generation:
        user = current_arrival().user
        lengths[user].append(len(request.messages))
        assert {f"of {user}"} >= {m.content for m in request.messages if m.role == "assistant"}
        return Generation(f"of {user}")

    workload = strategy_workload(RejectionSamplingStrategy(), ["hi"], Context(), ask, conversation=True)
    run(run_load, workload, ClosedLoop(users=2, requests=6, think_time_s=1))
    assert {0: [1, 3, 5], 1: [1, 3, 5]} == lengths


def test_a_conversation_of_several_turns_begins_anew(run):
    """C7, C8: after three requests of a user."""
    lengths: list[int] = []

    async def ask(request: Request) -> Generation:
        lengths.append(len(request.messages))
        return Generation("yes")

    workload = strategy_workload(RejectionSamplingStrategy(), ["hi"], None, ask, conversation=True, turns=3)
    run(run_load, workload, ClosedLoop(users=1, requests=7))
    assert [1, 3, 5, 1, 3, 5, 1] == lengths
    with pytest.raises(ValueError, match="turns needs conversation=True"):
        strategy_workload(RejectionSamplingStrategy(), ["hi"], None, ask, turns=3)


def test_a_conversation_whose_first_request_fails_does_not_continue_the_one_before(run):
    """C7, C8: the failed request counts as a turn, and the next one has no history."""
    lengths: list[int] = []

    async def ask(request: Request) -> Generation:
        lengths.append(len(request.messages))
        if len(lengths) == 4:
            raise FatalError("no")
        return Generation("yes")

    workload = strategy_workload(RejectionSamplingStrategy(), ["hi"], None, ask, conversation=True, turns=3)
    run(run_load, workload, ClosedLoop(users=1, requests=7))
    assert [1, 3, 5, 1, 1, 3, 1] == lengths


def test_a_conversation_in_a_mix_ends_after_its_turns(run):
    """C7, C8: also if the other operation has the request that would begin a new one."""
    turns = 3
    seen: dict[int, set[str]] = defaultdict(set)

    async def ask(request: Request) -> Generation:
        number = current_arrival().number
        earlier = {message.text for message in request.messages if message.role == "assistant"}
        assert earlier <= seen[number // turns], "nothing of another conversation"
        seen[number // turns].add(answer := f"answer {number}")
        return Generation(answer)

    chat = strategy_workload(RejectionSamplingStrategy(), ["hi"], None, ask, conversation=True, turns=turns)
    report = run(run_load, mix({"chat": (1, chat), "other": (1, Crowd())}), ClosedLoop(users=1, requests=40))
    assert (40, True) == (report.succeeded, report.operations["chat"].succeeded > 10)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ClosedLoop(users=5, requests=5, rate=3), "rate and users contradict each other"),
        (lambda: OpenLoop(rate=3, duration_s=5, users=3), "rate and users contradict each other"),
        (lambda: ClosedLoop(users=0, requests=5), "users must be >= 1, got 0"),
        (lambda: ClosedLoop(users=10**20, requests=5), r"users must be <= 10,000,000, got 100,000,000,000,000,000,000"),
        (lambda: ClosedLoop(users=2, requests=-5), "requests must be >= 0, got -5"),
        (lambda: ClosedLoop(users=2, requests=5, think_time_s=-1), "think_time_s must be >= 0, got -1"),
        (lambda: ClosedLoop(users=2, horizon_s=0), "horizon_s must be > 0, got 0"),
        (lambda: ClosedLoop(users=2, horizon_s=5, warmup_s=5), r"warmup_s must be < horizon_s \(5\), got 5"),
        (lambda: ClosedLoop(users=2, horizon_s=math.inf), "horizon_s must be a finite number"),
        (lambda: ClosedLoop(users=2, requests=1, on_error="stop"), "on_error must be 'continue' or 'cancel'"),
    ],
)
def test_contradictions_and_negative_values_are_errors_that_say_why(make, says):
    """C8: contradictions and negative values are errors that say why."""
    with pytest.raises(ValueError, match=says):
        make()


def test_a_rate_driven_run_is_unchanged_by_closed_loops():
    """C9: the same bytes, alone and with a closed loop running beside it."""

    async def workload(arrival: Arrival) -> None:
        await anyio.sleep(arrival.rng.choice((0.25, 0.5)))

    profile = OpenLoop(rate=4, duration_s=10)

    async def beside() -> LoadReport:
        async with anyio.create_task_group() as group:
            group.start_soon(run_load, workload, ClosedLoop(users=3, horizon_s=8))
            return await run_load(workload, profile, seed=2)

    async def alone() -> LoadReport:
        return await run_load(workload, profile, seed=2)

    def counted(report: LoadReport) -> tuple[Counter, list[float]]:
        return Counter(report.to_dict()["errors"]), sorted(report.samples.columns["done_s"])

    assert counted(run_virtual(alone)) == counted(run_virtual(beside))
    assert run_virtual(alone).latency == run_virtual(beside).latency


def test_users_are_activated_at_a_bounded_pace(run):
    """R13, C2: two per second, although there is no think time to spread them."""
    crowd = Crowd(100.0)
    report = run(run_load, crowd, ClosedLoop(users=6, horizon_s=10, activate_per_s=2, warmup_s=1.0, drain_s=1))
    assert [0.0, 0.5, 1.0, 1.5, 2.0, 2.5] == [asked[0] for asked in crowd.asked.values()]
    assert 3 == report.active_users


def test_a_closed_loop_that_its_budget_ends_has_the_rate_of_its_traffic(run):
    """O11: 100 requests of 10 users in about a second, with a horizon of a minute."""

    async def tenth(arrival: Arrival) -> None:
        await anyio.sleep(0.1)

    report = run(run_load, tenth, ClosedLoop(users=10, requests=100, horizon_s=60))
    assert 100 == pytest.approx(report.achieved_rate, rel=0.15)
    at_once = run(run_load, tenth, ClosedLoop(users=50, requests=50, horizon_s=60))
    assert 500 == pytest.approx(at_once.achieved_rate, rel=0.05)


def test_a_closed_loop_in_which_all_hang_lasts_until_its_horizon(run):
    """O11: the users would have sent until then."""

    async def hangs(arrival: Arrival) -> None:
        await anyio.sleep_forever()

    report = run(run_load, hangs, ClosedLoop(users=10, horizon_s=30, drain_s=5))
    assert (30.0, 10, 10) == (report.duration_s, report.admitted, report.cancelled)


def test_a_user_has_a_timeout_too(run):
    """O12: a request that times out is failed, and its user continues."""

    async def hangs(arrival: Arrival) -> None:
        await anyio.sleep_forever()

    report = run(run_load, hangs, ClosedLoop(users=1, horizon_s=10, timeout_s=1.0))
    assert {"Timeout": report.failed} == report.errors
    assert 10 <= report.failed <= 11


def test_users_of_a_server_that_refuses_at_once_back_off(run):
    """C5: they do not spin, they say so, and they go on as before when it is back."""
    sent: list[float] = []

    async def down_until_five(arrival: Arrival) -> None:
        sent.append(anyio.current_time())
        if anyio.current_time() < 5:
            raise ConnectionRefusedError("nobody listens")
        await anyio.sleep(0.1)

    report = run(run_load, down_until_five, ClosedLoop(users=2, horizon_s=10))
    assert sum(at < 5 for at in sent) < 100
    assert report.succeeded > 90
    assert report.backoffs > 10
    assert any("backed off" in note for note in report.notes)


class Few:
    """A workload with a number of requests, which the first user never gets an answer to."""

    def __init__(self, requests: int) -> None:
        self.left = requests
        self.draws = 0

    def draw(self, arrival: Arrival):
        self.draws += 1
        if not self.left:
            return None
        self.left -= 1
        return partial(anyio.sleep, math.inf if arrival.user == 0 else 0.1)


def test_a_workload_that_has_run_out_begins_the_drain(run):
    """C5, O5: nothing can follow, so a request that is never answered ends with the drain, and not never."""
    report: LoadReport = run(run_load, Few(5), ClosedLoop(users=3, requests=100, think_time_s=0.3, drain_s=7))
    assert (5, 4, 1, True) == (report.admitted, report.succeeded, report.cancelled, report.exhausted)
    assert {"completed": 2, "cancelled": 1, "horizon": 0, "budget": 0} == report.user_ends
    assert 0.1 * 2 + 0.3 * 3 + 7 > report.elapsed_s


def test_users_who_think_when_the_workload_runs_out_are_complete_and_draw_nothing(run):
    """C5: None ends the run, so nobody asks again, and a think time that outlasts the drain is not a cancellation."""
    few = Few(4)
    report: LoadReport = run(run_load, few, ClosedLoop(users=4, requests=100, think_time_s=40.0, drain_s=7))
    assert {"completed": 3, "cancelled": 1, "horizon": 0, "budget": 0} == report.user_ends
    assert 5 == few.draws
