"""O and C against a second implementation: a plain simulation of the contracts, without tasks or event loops."""

import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import anyio
import attrs
import pytest

from sampling.load import Answered, Arrival, ClosedLoop, LoadReport, OpenLoop, Profile, run_load
from sampling.load.model._recording import OUTCOMES

SEEDS = range(80)


@attrs.frozen
class Server:
    """A server whose answer depends only on who asks how often, and on the time."""

    seed: int
    base_s: float
    spread_s: float
    fails: float
    hangs: float
    frozen_s: tuple[float, float]
    requests: int | None
    """Number of requests after which the workload is empty."""

    @classmethod
    def of(cls, seed: int) -> "Server":
        rng = random.Random(seed)
        return cls(
            seed,
            base_s=rng.choice([0.25, 0.5, 1.0]),
            spread_s=rng.choice([0.1, 1.0, 4.0]),
            fails=rng.choice([0.0, 0.0, 0.1, 0.5, 1.0]),
            hangs=rng.choice([0.0, 0.0, 0.05, 0.3]),
            frozen_s=rng.choice([(0.0, 0.0), (2.0, 4.5)]),
            requests=rng.choice([None, None, None, rng.randrange(40)]),
        )

    def answer(self, now_s: float, user: int | None, number: int) -> tuple[str, float]:
        """Return the outcome, and when it comes."""
        rng = random.Random(repr((self.seed, user, number)))
        start_s, end_s = self.frozen_s
        waits_s = end_s - now_s if start_s <= now_s < end_s else 0.0
        done_s = now_s + waits_s + self.base_s + self.spread_s * rng.random()
        if rng.random() < self.hangs:
            return "cancelled", math.inf
        return ("failed" if rng.random() < self.fails else rng.choice(["valid", "invalid"])), done_s


class Served:
    """The server as a workload."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._drawn = 0

    def draw(self, arrival: Arrival) -> Callable | None:
        if self._drawn == self._server.requests:
            return None
        self._drawn += 1

        async def send() -> Answered:
            outcome, done_s = self._server.answer(anyio.current_time(), arrival.user, arrival.number)
            await anyio.sleep_until(done_s)
            if outcome == "failed":
                raise RuntimeError("no")
            return Answered(valid=outcome == "valid")

        return send


class Sent(NamedTuple):
    """One request, as the contracts have it."""

    due_s: float
    user: int
    outcome: str
    done_s: float


def ask(server: Server, profile: Profile, due_s: float, user: int | None, number: int) -> tuple[str, float]:
    """O12: a request that reaches its timeout has failed then."""
    outcome, done_s = server.answer(due_s, user, number)
    late_s = math.inf if profile.timeout_s is None else due_s + profile.timeout_s
    return ("failed", late_s) if done_s >= late_s else (outcome, done_s)


def cut_off(sent: list[Sent], end_s: float) -> list[Sent]:
    """O5: what is unanswered at the end of the drain is cancelled."""
    return [each if each.done_s <= end_s else each._replace(outcome="cancelled", done_s=end_s) for each in sent]


def arrivals(profile: OpenLoop) -> list[float]:
    """O1: arrival i is where the integral of the rate reaches i. O11: the first of two limits ends the run."""
    rate, ends_s = profile.rate or 0.0, profile.warmup_s + (profile.duration_s or 1e9)
    slope = 0.0 if profile.to_rate is None else (profile.to_rate - rate) / (profile.duration_s or 1.0)
    found: list[float] = []
    for number in itertools.count():
        rest = number - rate * profile.warmup_s
        due_s = number / rate
        if rest > 0 and slope:
            root = math.sqrt(max(rate * rate + 2 * slope * rest, 0.0))
            due_s = profile.warmup_s + (root - rate) / slope if rate * rate + 2 * slope * rest > 0 else math.inf
        is_enough = profile.requests is not None and sum(at >= profile.warmup_s for at in found) == profile.requests
        if due_s >= ends_s - 1e-9 or (is_enough and due_s >= profile.warmup_s):
            return found
        found.append(due_s)
    raise AssertionError


def simulate_open(profile: OpenLoop, server: Server) -> tuple[list[Sent], list[float]]:
    """O2, O3, O4: nothing waits, a permit is held until the answer, and what is dropped draws nothing."""
    sent: list[Sent] = []
    dropped: list[float] = []
    busy: list[float] = []
    due = arrivals(profile)
    planned_s = profile.warmup_s + (profile.duration_s or 0.0)
    is_cut = profile.requests is not None and sum(at >= profile.warmup_s for at in due) == profile.requests
    ends_s = due[-1] if due and (is_cut or profile.duration_s is None) else planned_s
    for due_s in due:
        while busy and busy[0] <= due_s:
            heapq.heappop(busy)
        if len(busy) >= profile.max_in_flight:
            dropped.append(due_s)
        elif len(sent) == server.requests:
            ends_s = due_s
            break
        else:
            outcome, done_s = ask(server, profile, due_s, None, len(sent))
            sent.append(Sent(due_s, -1, outcome, done_s))
            heapq.heappush(busy, done_s)
    return cut_off(sent, ends_s + (profile.drain_s or 0.0)), dropped


def simulate_closed(profile: ClosedLoop, server: Server) -> tuple[list[Sent], Counter[str]]:
    """C1 to C5: one request in flight for each user, who ends exactly once."""
    drain_s, horizon_s = profile.drain_s or 0.0, math.inf if profile.horizon_s is None else profile.horizon_s
    first = profile.users if profile.requests is None else min(profile.users, profile.requests)
    left = math.inf if profile.requests is None else profile.requests - first
    sent: list[Sent] = []
    ends = Counter(budget=profile.users - first)
    ends_s = horizon_s + drain_s
    order = itertools.count()
    waiting = [(user * profile.think_time_s / profile.users, next(order), user, 0, "") for user in range(first)]
    unsent = first
    heapq.heapify(waiting)
    is_empty = False
    while waiting:
        now_s, _, user, number, outcome = heapq.heappop(waiting)
        if outcome:  # an answer
            if now_s > ends_s or (outcome == "failed" and profile.on_error == "cancel"):
                ends["cancelled"] += 1
            elif not left:
                ends["budget"] += 1
            else:
                left, unsent = left - 1, unsent + 1
                heapq.heappush(waiting, (now_s + profile.think_time_s, next(order), user, number + 1, ""))
        elif now_s > horizon_s:
            ends["horizon"] += 1
        elif is_empty or len(sent) == server.requests:
            ends_s = ends_s if is_empty else min(ends_s, now_s + drain_s)
            is_empty = True
            ends["completed"] += 1
        else:
            unsent -= 1
            outcome, done_s = ask(server, profile, now_s, user, number)
            sent.append(Sent(now_s, user, outcome, done_s))
            heapq.heappush(waiting, (done_s, next(order), user, number, outcome))
            if not left and not unsent:
                ends_s = min(ends_s, now_s + drain_s)
    return cut_off(sent, ends_s), ends


def percentile(values: list[float], percent: int) -> float | None:
    """R6: nearest rank, by ceiling."""
    return sorted(values)[-(-percent * len(values) // 100) - 1] if values else None


def found_in(report: LoadReport) -> list[Sent]:
    columns = report.samples.columns
    outcomes = [OUTCOMES[code] for code in columns["outcome"]]
    return sorted(map(Sent, columns["intended_s"], columns["user"], outcomes, columns["done_s"]))


def check(report: LoadReport, profile: Profile, sent: list[Sent], dropped: list[float]) -> None:
    """Compare every request, the counts and the percentiles."""
    measured = sorted(each for each in sent if each.due_s >= profile.warmup_s)
    found = found_in(report)
    assert [each[1:3] for each in measured] == [each[1:3] for each in found]
    for column in (0, 3):
        assert [each[column] for each in measured] == pytest.approx([each[column] for each in found], abs=1e-6)
    outcomes = Counter(each.outcome for each in measured)
    unsent = sum(at >= profile.warmup_s for at in dropped)
    assert (len(measured), unsent, len(sent) - len(measured)) == (report.admitted, report.dropped, report.warmup_sent)
    assert [outcomes[name] for name in OUTCOMES] == [
        report.valid, report.invalid, report.failed, report.cancelled
    ]  # fmt: skip
    took = [each.done_s - each.due_s for each in measured if each.outcome in ("valid", "invalid")]
    for percent, value in ((50, report.latency.p50), (95, report.latency.p95), (99, report.latency.p99)):
        assert pytest.approx(percentile(took, percent), abs=1e-6) == value


@pytest.mark.parametrize("seed", SEEDS)
def test_an_open_loop_sends_and_counts_what_the_contracts_say(run, seed):
    """O1 to O5, O11, O12: instants, drops, outcomes and percentiles of a random server under random traffic."""
    rng = random.Random(seed)
    limits = rng.choice([{"duration_s": rng.uniform(1, 12)}, {"requests": rng.randint(1, 80)}, {}])
    limits = limits or {"duration_s": rng.uniform(1, 12), "requests": rng.randint(1, 80)}
    ramp = {"to_rate": rng.uniform(0.2, 20)} if "duration_s" in limits and rng.random() < 0.5 else {}
    profile = OpenLoop(
        rate=rng.uniform(0.5, 15), max_in_flight=rng.choice([1, 4, 1000]),
        warmup_s=rng.choice([0.0, rng.uniform(0, 4)]), drain_s=rng.uniform(0, 4),
        timeout_s=rng.choice([None, rng.uniform(0.3, 3)]), **limits, **ramp,
    )  # fmt: skip
    server = Server.of(seed)
    check(run(run_load, Served(server), profile), profile, *simulate_open(profile, server))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_closed_loop_sends_and_counts_what_the_contracts_say(run, seed):
    """C1 to C5, O12: instants, outcomes, percentiles and the ends of users of a random server under random traffic."""
    rng = random.Random(seed)
    limits = {"horizon_s": rng.uniform(2, 15)} | ({"requests": rng.randint(0, 60)} if rng.random() < 0.4 else {})
    # With a think time, no two users finish together, so that it is clear who gets the last request.
    profile = ClosedLoop(
        users=rng.randint(1, 12), think_time_s=rng.uniform(0.3, 3), on_error=rng.choice(["continue", "cancel"]),
        warmup_s=rng.choice([0.0, 1.5]), drain_s=rng.uniform(0, 4), timeout_s=rng.choice([None, rng.uniform(0.3, 3)]),
        **limits,
    )  # fmt: skip
    server = Server.of(seed)
    report: LoadReport = run(run_load, Served(server), profile)
    sent, ends = simulate_closed(profile, server)
    check(report, profile, sent, [])
    assert {name: ends[name] for name in report.user_ends} == report.user_ends
