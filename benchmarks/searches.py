"""
Compare capacity searches with the truth, over random servers in virtual time.

A server is a queue with slots, and one vice: noise, pauses, two kinds of answers, cold caches, a slow drift, a hard
limit, shedding or hanging. The true capacity is found by a simulation of the same queue that is far longer than a step.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import anyio
import attrs

from benchmarks.report import Check, Row, Section, Settings, shout
from sampling.load import Answered, Arrival, CapacityAnswer, CapacityRun, CapacitySettings, LoadReport, OpenLoop, Slo
from sampling.load.model._aggregation import build_report
from sampling.load.model._recording import Outcome, Recording
from sampling.load.traffic._arrivals import instants
from sampling.testing import run_virtual

if TYPE_CHECKING:
    from sampling._virtual_time import LoopName

VICES = ("noise", "pauses", "bimodal", "cold", "drift", "limit", "sheds", "hangs")
SEARCHES, WHOLE_SEARCHES, QUICK_SEARCHES = 500, 24, 16
HOLD_S, WARMUP_S, DRAIN_S = 60.0, 10.0, 20.0
NEAR, PRECISION, SURE = 0.05, 0.02, 0.95
"""Tolerance of a reported rate, precision of a search, and confidence of a statement that should hold."""

BUSY_SHARE = 0.8
ANSWER = Answered()

_TRUTH_S = 3000.0
"""Length of the simulation that defines the truth."""


class Refused(Exception):
    """The server refused the request."""


@dataclass(frozen=True)
class Server:
    """The parameters of a server."""

    vice: str
    slots: int
    service_s: float
    spread: float
    """The coefficient of variation of the service time."""

    limit_s: float
    """The limit on the p95 latency."""

    seed: int
    busy_share: float = BUSY_SHARE
    """A server that sheds or hangs does so when the wait is longer than this share of the limit."""

    @classmethod
    def of(cls, seed: int) -> Server:
        """Draw a server."""
        rng = random.Random(seed)
        slots, rate = rng.randint(2, 8), rng.uniform(12, 30)
        service_s = slots / rate
        return cls(
            VICES[seed % len(VICES)], slots, service_s, rng.uniform(0.05, 0.3), service_s * rng.uniform(3, 6), seed
        )

    @property
    def slo(self) -> Slo:
        """The SLO of the search."""
        return Slo(p95_s=self.limit_s)


class Queue:
    """
    The queue of a server.

    Pauses are cut out of the time of the queue, so that work stands still in them.
    """

    def __init__(self, server: Server, seed: int, *, is_settled: bool = False) -> None:
        self.server = server
        self._rng = random.Random(seed)
        self._free = [0.0] * server.slots
        self._recent: deque[float] = deque()
        # What a server holds is what it holds with warm caches and between its rare pauses.
        self._served = 100 if is_settled else 0
        pauses = server.vice == "pauses" and not is_settled
        self._pause_s, self._period_s = (3.0, 300.0) if pauses else (0.0, 300.0)
        self._phase_s = random.Random(server.seed).uniform(0, 290)
        self._shape = math.sqrt(math.log(1 + server.spread**2))
        self._median_s = server.service_s * math.exp(-(self._shape**2) / 2)

    def _active(self, at_s: float) -> float:
        if not self._pause_s:
            return at_s
        periods, into_s = divmod(at_s - self._phase_s, self._period_s)
        return at_s - periods * self._pause_s - min(into_s, self._pause_s)

    def _real(self, active_s: float) -> float:
        if not self._pause_s:
            return active_s
        periods = math.floor((active_s - self._phase_s) / (self._period_s - self._pause_s))
        return active_s + (periods + 1) * self._pause_s

    def service_s(self, at_s: float) -> float:
        """Draw the time that a request takes in a slot."""
        server, rng = self.server, self._rng
        service_s = self._median_s * math.exp(self._shape * rng.gauss(0.0, 1.0))
        if server.vice == "bimodal":
            service_s *= 4.0 if rng.random() < 0.03 else 0.91
        if server.vice == "cold" and self._served < 100:
            service_s *= 3.0
        if server.vice == "drift":
            service_s *= 1 + 0.02 * min(at_s / 1800, 1.0)
        return service_s

    def arrive(self, at_s: float) -> float:
        """Return when a request is answered, infinity for never. Raise if it is refused."""
        server = self.server
        if server.vice == "limit":
            while self._recent and self._recent[0] <= at_s - 5:
                self._recent.popleft()
            if len(self._recent) >= 5 * 0.8 * server.slots / server.service_s:
                raise Refused
            self._recent.append(at_s)
        now_s = self._active(at_s)
        if self._free[0] - now_s > server.busy_share * server.limit_s:
            if server.vice == "sheds":
                raise Refused
            if server.vice == "hangs":
                return math.inf
        self._served += 1
        done_s = max(self._free[0], now_s) + self.service_s(at_s)
        heapq.heapreplace(self._free, done_s)
        return max(self._real(done_s), at_s)

    async def __call__(self, arrival: Arrival) -> None:
        """Serve one request."""
        await anyio.sleep_until(self.arrive(anyio.current_time()))


def holds(server: Server, rate: float) -> bool:
    """Return True if the server meets its limits at a rate for a long time."""
    queue = Queue(server, server.seed + 1, is_settled=True)
    late = lost = 0
    count = int(rate * _TRUTH_S)
    for number in range(count):
        at_s = number / rate
        try:
            took_s = queue.arrive(at_s) - at_s
        except Refused:
            took_s = math.inf
        late += took_s > server.limit_s
        lost += math.isinf(took_s)
        if late > 0.05 * count or lost > 0.01 * count:
            return False
    return True


def true_capacity(server: Server) -> float:
    """Return the highest rate that holds, to half a percent."""
    nominal = server.slots / server.service_s
    low, high = 0.5 * nominal, 1.1 * nominal
    while high - low > 0.005 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(server, middle) else (low, middle)
    return low


class DirectSearch(CapacityRun):
    """
    A search without the traffic generator.

    The server gets the arrival times that the generator would send at. Everything else is that of a real search, which
    takes ten times as long.
    """

    def __init__(self, queue: Queue, settings: CapacitySettings) -> None:
        super().__init__(queue, settings)
        self._queue, self._chosen = queue, settings

    async def _measure(self, target: float, seed: int, holds: int) -> tuple[LoadReport, None]:
        settings = attrs.evolve(self._chosen, hold_s=holds * self._chosen.hold_s)
        profile = settings.profile(target)
        assert isinstance(profile, OpenLoop)
        recording = Recording(1.0)
        start_s, ends_s = anyio.current_time(), settings.warmup_s + settings.hold_s
        drained_s, tally = ends_s, recording.tally
        for index, due_s in enumerate(instants(profile, seed)):
            outcome: Outcome = "valid"
            try:
                done_s = self._queue.arrive(start_s + due_s) - start_s
            except Refused:
                outcome, done_s = "failed", due_s
            if done_s > ends_s + DRAIN_S:
                outcome, done_s = "cancelled", ends_s + DRAIN_S
            drained_s = max(drained_s, done_s)
            if due_s < settings.warmup_s:
                continue
            recording.add(
                Arrival(index, due_s), sent_s=due_s, first_s=math.nan, done_s=done_s, outcome=outcome, answer=ANSWER
            )
            tally.scheduled += 1
            tally.admitted += 1
            tally.succeeded += outcome == "valid"
            tally.failed += outcome == "failed"
            tally.cancelled += outcome == "cancelled"
        recording.ended_s, recording.drained_s = ends_s, drained_s
        await anyio.sleep_until(start_s + drained_s)
        return build_report(recording, profile, seed=seed, slo=settings.slo), None


@dataclass(frozen=True)
class Found:
    """The answer of a search, and the truth."""

    vice: str
    truth: float
    rate: float
    confidence: float
    steps: int
    text: str

    @property
    def ratio(self) -> float:
        """The answer as a share of the truth."""
        return self.rate / self.truth


def search(seed: int, *, direct: bool = True, loop: LoopName = "asyncio") -> Found:
    """Search for the capacity of one server."""
    server = Server.of(seed)
    truth = true_capacity(server)
    rng = random.Random(seed)
    settings = CapacitySettings(
        steps=[truth * rng.uniform(0.3, 0.5), truth * rng.uniform(0.7, 0.9), truth * rng.uniform(1.15, 1.6)],
        slo=server.slo,
        refine=True,
        warmup_s=WARMUP_S,
        hold_s=HOLD_S,
        cooldown_s=5.0,
        drain_s=DRAIN_S,
        seed=seed,
    )
    kind = DirectSearch if direct else CapacityRun
    answer: CapacityAnswer = run_virtual(kind(Queue(server, seed), settings).run, loop=loop)
    return Found(server.vice, truth, answer.max_rate or 0.0, answer.confidence or 0.0, len(answer.steps), str(answer))


def run(settings: Settings) -> list[Section]:
    """Search, and compare."""
    count, whole_count = (QUICK_SEARCHES, 2) if settings.quick else (SEARCHES, WHOLE_SEARCHES)
    with ProcessPoolExecutor(2) as processes:
        found = list(processes.map(search, range(count)))
        whole = list(processes.map(partial(search, direct=False), range(whole_count)))
    for index, each in enumerate(found):
        if abs(each.ratio - 1) > NEAR:
            shout(f"server {index} ({each.vice}), which holds {each.truth:.4g}: {each.text}")
    every = _row(f"{count} random servers", found)
    by_vice = [_row(vice, [each for each in found if each.vice == vice]) for vice in VICES]
    rows = (_with_checks(every), *by_vice, _compare(found[:whole_count], whole))
    return [Section("Capacity searches against the truth", "share", rows)]


def _row(name: str, found: Sequence[Found]) -> Row:
    sure = [each.ratio for each in found if each.confidence >= SURE]
    values = {
        "within 5 %": sum(abs(each.ratio - 1) <= NEAR for each in found) / len(found),
        "lowest": min(each.ratio for each in found),
        "highest": max(each.ratio for each in found),
        "sure": len(sure) / len(found),
        # A search tells rates apart that differ by 2 %.
        "sure and right": sum(ratio <= 1 + PRECISION for ratio in sure) / len(sure) if sure else None,
        "steps": sum(each.steps for each in found) / len(found),
    }
    return Row(name, values, details={"searches": [(round(each.ratio, 4), each.confidence) for each in found]})


def _with_checks(row: Row) -> Row:
    checks = (
        Check("within 5 % of the truth", row.values["within 5 %"], 0.95, at_least=True),
        Check("highest", row.values["highest"], 1 + NEAR),
        Check("statements of 95 % that hold", row.values["sure and right"], 0.93, at_least=True),
    )
    return replace(row, checks=checks)


def _compare(direct: Sequence[Found], whole: Sequence[Found]) -> Row:
    """Compare the searches without and with the traffic generator."""
    same = sum(a == b for a, b in zip(direct, whole, strict=True))
    row = _row(f"the first {len(whole)}, with the traffic generator", whole)
    return replace(row, checks=(Check("same answer", same / len(whole), 1.0, at_least=True),))
