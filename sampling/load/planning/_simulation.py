"""
`simulate`: predict the report of `run_load` for a server model.

A discrete-event simulation of `run_load(strategy_workload(RejectionSamplingStrategy(…), …, server.backend()), profile)`
with the same queue, slots, depth and breadth. It returns the same kind of report, so that plans and measurements are
judged alike.
"""

import math
import random
from collections import deque
from collections.abc import Sequence
from itertools import chain

import attrs

from sampling._arguments import check_budgets, check_instance, check_int
from sampling.load.model._aggregation import build_report
from sampling.load.model._profiles import OpenLoop
from sampling.load.model._recording import Outcome, Recording
from sampling.load.model._report import LoadReport
from sampling.load.model._seeds import derive_seed
from sampling.load.model._slo import Slo
from sampling.load.model._workload import Answered, Arrival
from sampling.load.planning._server_model import ServerModel
from sampling.load.traffic._arrivals import instants, sending_ends_s
from sampling.load.traffic._generator import levels_of
from sampling.usage import Price, Usage

__all__ = ["replay", "simulate"]


@attrs.define(eq=False)
class _SimulatedCall:
    """One arrival: a call of a strategy with its attempts."""

    arrival: Arrival
    rng: random.Random
    running: int = 0
    """Number of subsamples that have not ended."""

    first_s: float = math.nan
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    ended: bool = False


@attrs.define(eq=False)
class _SimulatedAttempt:
    """
    One request to the server.

    Remaining times are those of a request alone on the server.
    """

    call: _SimulatedCall
    number: int
    tokens: int
    passes: bool
    token_s: float
    first_left_s: float
    tokens_left_s: float

    @property
    def generated(self) -> int:
        """Number of tokens generated so far."""
        if self.first_left_s > 0:
            return 0
        left = math.ceil(self.tokens_left_s / self.token_s - 1e-9) if self.token_s else 0
        return self.tokens - max(left, 0)


class _Server:
    """The queue, the slots and the simulated clock. The clock jumps from event to event."""

    def __init__(self, model: ServerModel) -> None:
        self._model = model
        self.now_s = 0.0
        self._queue: deque[_SimulatedAttempt] = deque()
        self.busy: list[_SimulatedAttempt] = []

    def enqueue(self, attempt: _SimulatedAttempt) -> None:
        self._queue.append(attempt)
        self._fill()

    def drop(self, call: _SimulatedCall) -> None:
        """Free the slots of an ended call. Its queued attempts are skipped later."""
        self.busy = [attempt for attempt in self.busy if attempt.call is not call]
        self._fill()

    def _fill(self) -> None:
        while self._queue and len(self.busy) < self._model.slots:
            attempt = self._queue.popleft()
            if not attempt.call.ended:
                attempt.call.requests += 1
                attempt.call.input_tokens += self._model.input_tokens
                self.busy.append(attempt)

    def _slowness(self) -> tuple[float, float]:
        others = len(self.busy) - 1
        return 1 + self._model.first_token_slowdown * others, 1 + self._model.token_slowdown * others

    def next_event_s(self) -> float:
        """
        Return the time of the next event, if nothing arrives.

        An event is a first token or a complete answer.
        """
        if not self.busy:
            return math.inf
        first, later = self._slowness()
        return self.now_s + min(
            attempt.first_left_s * first if attempt.first_left_s > 0 else attempt.tokens_left_s * later
            for attempt in self.busy
        )

    def advance(self, to_s: float) -> list[_SimulatedAttempt]:
        """Advance the time to the next event or before, and return the completed attempts."""
        first, later = self._slowness()
        passed_s, self.now_s = to_s - self.now_s, to_s
        whole: list[_SimulatedAttempt] = []
        for attempt in self.busy:
            if attempt.first_left_s > 0:
                attempt.first_left_s -= passed_s / first
                if attempt.first_left_s <= 1e-12:
                    attempt.first_left_s = 0.0
                    attempt.call.first_s = min(to_s, attempt.call.first_s) if attempt.call.first_s >= 0 else to_s
            else:
                attempt.tokens_left_s -= passed_s / later
            if attempt.first_left_s <= 0 and attempt.tokens_left_s <= 1e-12:
                whole.append(attempt)
        if whole:
            self.busy = [attempt for attempt in self.busy if attempt not in whole]
            self._fill()
        return whole


class _Simulation:
    """One simulated run."""

    def __init__(
        self,
        model: ServerModel,
        profile: OpenLoop,
        *,
        depth: int = 1,
        breadth: int = 1,
        seed: int = 0,
        price: Price | None = None,
        lengths: Sequence[int] | None = None,
    ) -> None:
        self._model = model
        self._profile = profile
        self._depth = depth
        self._breadth = breadth
        self._seed = seed
        self._price = price
        self._lengths = lengths
        self._server = _Server(model)
        self._in_flight: dict[_SimulatedCall, None] = {}
        self._ends_s = sending_ends_s(profile, seed)
        self.recording = Recording(*levels_of(profile))

    def run(self) -> Recording:
        """Process all events and return the recording."""
        arrivals = enumerate(instants(self._profile, self._seed))
        # The last one, at infinity, lets the server answer what is left.
        for index, due_s in chain(arrivals, [(-1, math.inf)]):
            while self._server.next_event_s() <= due_s and self._server.busy:
                if self._overdue(index):
                    break
                self._step()
            if index < 0:
                break
            self._wait_until(due_s)
            self._arrive(index, due_s)
        self._finish()
        return self.recording

    def _overdue(self, index: int) -> bool:
        """Return True if the drain is over."""
        drain_s = self._profile.drain_s
        return index < 0 and drain_s is not None and self._server.next_event_s() > self._ends_s + drain_s

    def _wait_until(self, due_s: float) -> None:
        whole = self._server.advance(due_s)
        # All tokens first: the end of a call counts the attempts in slots, and these have left theirs.
        for attempt in whole:
            attempt.call.output_tokens += attempt.tokens
        for attempt in whole:
            self._answered(attempt)

    def _step(self) -> None:
        self._wait_until(self._server.next_event_s())

    def _arrive(self, index: int, due_s: float) -> None:
        recording = self.recording
        tally = recording.warmup if due_s < self._profile.warmup_s else recording.tally
        tally.scheduled += 1
        if len(self._in_flight) >= self._profile.max_in_flight:
            tally.dropped += 1
            recording.dropped_s.append(due_s)
            return
        tally.admitted += 1
        recording.levels.change(due_s, +1)
        rng = random.Random(derive_seed(self._seed, "call", index))  # noqa: S311 - a simulated answer is no secret
        call = _SimulatedCall(Arrival(index, due_s, number=index, seed=self._seed), rng, running=self._breadth)
        self._in_flight[call] = None
        for _ in range(self._breadth):
            self._server.enqueue(self._attempt(call, 0))

    def _attempt(self, call: _SimulatedCall, number: int) -> _SimulatedAttempt:
        model, rng = self._model, call.rng
        tokens = rng.choice(model.output_tokens) if self._lengths is None else self._lengths[call.arrival.index]
        passes = rng.random() < model.pass_probability
        # Its mean is 1, so that jitter does not change the average.
        pace = rng.lognormvariate(-(model.jitter**2) / 2, model.jitter) if model.jitter else 1.0
        token_s = model.time_per_token_s * pace
        first_s = model.time_to_first_token_s * pace
        # Never 0, because a time left until the first token marks an attempt that has none yet.
        return _SimulatedAttempt(call, number, tokens, passes, token_s, max(first_s, 1e-9), (tokens - 1) * token_s)

    def _answered(self, attempt: _SimulatedAttempt) -> None:
        call = attempt.call
        if call.ended:
            return
        if attempt.passes:
            self._end(call, "valid")
        elif attempt.number + 1 < self._depth:
            self._server.enqueue(self._attempt(call, attempt.number + 1))
        else:
            call.running -= 1
            if not call.running:
                self._end(call, "invalid")

    def _end(self, call: _SimulatedCall, outcome: Outcome) -> None:
        call.ended = True
        call.output_tokens += sum(attempt.generated for attempt in self._server.busy if attempt.call is call)
        self._server.drop(call)
        del self._in_flight[call]
        recording, now_s, due_s = self.recording, self._server.now_s, call.arrival.intended_s
        recording.levels.change(now_s, -1)
        tally = recording.warmup if due_s < self._profile.warmup_s else recording.tally
        if outcome == "cancelled":
            tally.cancelled += 1
        else:
            tally.succeeded += 1
        if tally is recording.tally:
            used = Usage(call.input_tokens, call.output_tokens)
            answer = Answered(
                valid=outcome == "valid",
                input_tokens=call.input_tokens,
                output_tokens=call.output_tokens,
                cost=0.0 if self._price is None else self._price.of(used),
                requests=call.requests,
            )
            recording.add(
                call.arrival, sent_s=due_s, first_s=call.first_s, done_s=now_s, outcome=outcome, answer=answer
            )

    def _finish(self) -> None:
        for call in list(self._in_flight):
            self._end(call, "cancelled")
        self.recording.ended_s = self._ends_s
        self.recording.drained_s = max(self._ends_s, self._server.now_s)
        self.recording.levels.advance(self.recording.drained_s)


def simulate(
    server: ServerModel,
    profile: OpenLoop,
    *,
    depth: int = 1,
    breadth: int = 1,
    price: Price | None = None,
    seed: int = 0,
    slo: Slo | None = None,
) -> LoadReport:
    """
    Return the report that `run_load` would return.

    It is deterministic for a seed.

    Args:
        server: A server model, from `calibrate` or assumed.

        profile: An `OpenLoop`.

        depth: Maximum number of sequential attempts, until one is valid.

        breadth: Number of parallel subsamples. The first valid one cancels the others and frees their slots.

        price: The price of tokens, for the report's cost.

        seed: The same seed draws the same arrivals and answers.

        slo: Limits that define a good answer, for the report's goodput.
    """
    check_instance("server", server, ServerModel, "a ServerModel")
    check_instance("profile", profile, OpenLoop, "an OpenLoop")
    check_budgets(depth, breadth)
    check_int("seed", seed)
    recording = _Simulation(server, profile, depth=depth, breadth=breadth, seed=seed, price=price).run()
    return build_report(recording, profile, seed=seed, slo=slo)


def replay(server: ServerModel, sent_s: Sequence[float], lengths: Sequence[int], *, seed: int = 0) -> Recording:
    """
    Simulate these requests on a server.

    The index of each is its position in the list.
    """
    # Nothing may be dropped, because every request in a recording was sent.
    profile = OpenLoop(trace=tuple(sent_s), max_in_flight=1_000_000, drain_s=None)
    return _Simulation(server, profile, seed=seed, lengths=lengths).run()
