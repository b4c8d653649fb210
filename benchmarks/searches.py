"""
Compare capacity searches with the truth, over random servers in virtual time.

A server is a queue with slots, and one vice: noise, pauses, two kinds of answers, cold caches, a slow drift, a hard
limit, shedding or hanging. The true capacity is found by a simulation of the same queue that is far longer than a step.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import anyio

from benchmarks.report import Check, Row, Section, Settings, shout
from sampling.load import CapacityAnswer, Slo, find_capacity
from sampling.testing import run_virtual

if TYPE_CHECKING:
    from sampling._virtual_time import LoopName
    from sampling.load import Arrival

VICES = ("noise", "pauses", "bimodal", "cold", "drift", "limit", "sheds", "hangs")
SEARCHES, QUICK_SEARCHES = 500, 16
HOLD_S, WARMUP_S = 60.0, 10.0
NEAR = 0.05
"""Tolerance of a reported rate."""

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
        self._recent: list[float] = []
        # What a server holds is what it holds with warm caches and between its rare pauses.
        self._served = 100 if is_settled else 0
        pauses = server.vice == "pauses" and not is_settled
        self._pause_s, self._period_s = (3.0, 300.0) if pauses else (0.0, 300.0)
        self._phase_s = random.Random(server.seed).uniform(0, 290)

    def _active(self, at_s: float) -> float:
        periods, into_s = divmod(at_s - self._phase_s, self._period_s)
        return at_s - periods * self._pause_s - min(into_s, self._pause_s)

    def _real(self, active_s: float) -> float:
        periods = math.floor((active_s - self._phase_s) / (self._period_s - self._pause_s))
        return active_s + (periods + 1) * self._pause_s

    def _service_s(self, at_s: float) -> float:
        server, rng = self.server, self._rng
        shape = math.sqrt(math.log(1 + server.spread**2))
        service_s = server.service_s * rng.lognormvariate(-(shape**2) / 2, shape)
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
            self._recent = [earlier for earlier in self._recent if earlier > at_s - 5]
            if len(self._recent) >= 5 * 0.8 * server.slots / server.service_s:
                raise Refused
            self._recent.append(at_s)
        now_s = self._active(at_s)
        waiting_s = max(self._free[0] - now_s, 0.0)
        if waiting_s > 0.8 * server.limit_s and server.vice == "sheds":
            raise Refused
        if waiting_s > 0.8 * server.limit_s and server.vice == "hangs":
            return math.inf
        self._served += 1
        done_s = max(heapq.heappop(self._free), now_s) + self._service_s(at_s)
        heapq.heappush(self._free, done_s)
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
    return late <= 0.05 * count and lost <= 0.01 * count


def true_capacity(server: Server) -> float:
    """Return the highest rate that holds, to half a percent."""
    low, high = 0.0, 1.5 * server.slots / server.service_s
    while high - low > 0.005 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(server, middle) else (low, middle)
    return low


def search(seed: int, loop: LoopName = "asyncio") -> tuple[Server, float, CapacityAnswer]:
    """Search for the capacity of one server, and return it with the truth."""
    server = Server.of(seed)
    truth = true_capacity(server)
    rng = random.Random(seed)
    steps = [truth * rng.uniform(0.3, 0.5), truth * rng.uniform(0.7, 0.9), truth * rng.uniform(1.15, 1.6)]
    settings = {"warmup_s": WARMUP_S, "hold_s": HOLD_S, "cooldown_s": 5.0, "drain_s": 20.0, "seed": seed}
    find = partial(find_capacity, Queue(server, seed), steps, server.slo, refine=True, **settings)
    return server, truth, run_virtual(find, loop=loop)


def run(settings: Settings) -> list[Section]:
    """Search, and compare."""
    found = [search(seed) for seed in range(QUICK_SEARCHES if settings.quick else SEARCHES)]
    ratios = {index: (answer.max_rate or 0.0) / truth for index, (_, truth, answer) in enumerate(found)}
    near = sum(abs(ratio - 1) <= NEAR for ratio in ratios.values())
    above = sum(ratio > 1 + NEAR for ratio in ratios.values())
    sure = [index for index, (_, _, answer) in enumerate(found) if (answer.confidence or 0.0) >= 0.95]
    # A search is as precise as its last bisection, 2 %.
    right = sum(ratios[index] <= 1.02 for index in sure)
    wrong = Counter(found[index][0].vice for index, ratio in ratios.items() if abs(ratio - 1) > NEAR)
    for index, ratio in ratios.items():
        if abs(ratio - 1) > NEAR:
            shout(f"server {index} ({found[index][0].vice}): found {ratio:.3f} of the truth: {found[index][2]}")
    row = Row(
        f"{len(found)} random servers",
        {"within 5 %": near / len(found), "sure": len(sure) / len(found), "steps": _steps(found)},
        (
            Check("within 5 % of the truth", near / len(found), 0.95, at_least=True),
            Check("more than 5 % above it", float(above), 0.0),
            Check("statements of 95 % that hold", right / len(sure) if sure else None, 0.93, at_least=True),
        ),
        {"ratios": [round(ratio, 4) for ratio in ratios.values()], "wrong": dict(wrong)},
    )
    return [Section("Capacity searches against the truth", "share", (row,))]


def _steps(found: list[tuple[Server, float, CapacityAnswer]]) -> float:
    return sum(len(answer.steps) for _, _, answer in found) / len(found)
