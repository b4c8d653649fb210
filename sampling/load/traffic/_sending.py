"""Send one request and record its outcome."""

import math
import sys
from functools import partial
from typing import NamedTuple, NoReturn, cast

import anyio
import anyio.lowlevel
import attrs

from sampling._arguments import short_repr
from sampling._event_loop import running_loop
from sampling.errors import Timeout, UnexpectedCancellation
from sampling.load.model._recording import Outcome, Recording, Tally
from sampling.load.model._workload import Answered, Arrival, Draw, Send, enter_arrival, leave_arrival

__all__ = ["WHOLE", "Sender", "Sent", "Shard"]

_DEFAULT_ANSWER = Answered()
_ROUNDING_S = 1e-6


@attrs.frozen
class Shard:
    """The part of the traffic that one worker process sends."""

    worker: int = 0
    workers: int = 1

    def of(self, total: int) -> int:
        """Return this worker's even share of a number."""
        return total // self.workers + (self.worker < total % self.workers)


WHOLE = Shard()


class Sent(NamedTuple):
    """The outcome of a request, and its time."""

    outcome: Outcome
    done_s: float


class Sender:
    """Sends and records requests. Times are seconds from the start of the run."""

    def __init__(self, recording: Recording, start: float, warmup_s: float, timeout_s: float | None = None) -> None:
        self.recording = recording
        self._start = start
        self._warmup_s = warmup_s
        self._timeout_s = timeout_s
        loop = running_loop()
        self._clock = loop.time
        self._cancelled = loop.cancelled

    @property
    def elapsed_s(self) -> float:
        """
        Seconds since the start of the run.

        Measured on the monotonic clock of the event loop.
        """
        return self._clock() - self._start

    async def wait_for(self, instant_s: float) -> None:
        """
        Sleep until a time of the run.

        If it has passed, only let other tasks run.
        """
        await anyio.sleep(max(0.0, self._start + instant_s - self._clock()))

    def tally_for(self, intended_s: float) -> Tally:
        """Return the tally of the warm-up or the measurement. The arrival time decides."""
        return self.recording.warmup if intended_s < self._warmup_s else self.recording.tally

    @property
    def in_flight(self) -> int:
        """Requests that wait for an answer. Those of the warm-up are included."""
        return self.recording.tally.in_flight + self.recording.warmup.in_flight

    def admit(self, arrival: Arrival) -> None:
        """Count an arrival that will be sent. From here on it holds a permit."""
        tally = self.tally_for(arrival.intended_s)
        tally.scheduled += 1
        tally.admitted += 1

    def draw(self, arrival: Arrival, draw: Draw) -> Send | None:
        """Draw a request. If the workload raises instead, return one that fails with that error."""
        try:
            return draw(arrival)
        except Exception as error:  # noqa: BLE001 - counted like any failed request
            return partial(_fail, error)

    async def send(self, arrival: Arrival, send: Send) -> Sent:
        """Send one admitted request, and record the outcome."""
        sent_s = self.elapsed_s
        self.recording.levels.change(sent_s, +1)
        entered = enter_arrival(arrival)
        outcome: Outcome = "cancelled"
        answer = _DEFAULT_ANSWER
        try:
            returned = await (send() if self._timeout_s is None else self._send_in_time(send, self._timeout_s))
            if isinstance(returned, Answered):
                answer = returned
            outcome = "valid" if answer.valid else "invalid"
        except Exception as error:  # noqa: BLE001 - whatever fails is counted; a cancellation is none of these
            outcome = "failed"
            self._count_error(arrival, error)
        except BaseException as error:  # noqa: ASYNC103 - the checkpoint raises if it is ours
            if not _is_cancellation(error, self._cancelled):
                raise
            # Raises again, and so leaves the request cancelled, if the run is being cancelled. Otherwise the workload
            # raised a cancellation of its own, which must not end the traffic.
            await anyio.lowlevel.checkpoint_if_cancelled()  # noqa: ASYNC102 - it must raise
            outcome = "failed"
            self._count_error(arrival, UnexpectedCancellation())
        finally:
            # This releases the permit at the real end of the request, on every path.
            done_s = self._end_s(arrival, outcome)
            self._write(arrival, outcome, sent_s, done_s, answer)
            leave_arrival(entered)
        return Sent(outcome, done_s)

    async def _send_in_time(self, send: Send, timeout_s: float) -> object:
        due = anyio.current_time() + timeout_s
        with anyio.CancelScope(deadline=due):
            returned = await send()
            if anyio.current_time() < due:
                return returned
        raise Timeout(f"not answered within {timeout_s:g} s")

    def _end_s(self, arrival: Arrival, outcome: Outcome) -> float:
        """Return the time now. For a request that timed out, rounding must not make it shorter than the timeout."""
        now_s, timeout_s = self.elapsed_s, self._timeout_s
        if outcome == "failed" and timeout_s is not None and 0 < timeout_s - (now_s - arrival.intended_s) < _ROUNDING_S:
            return math.nextafter(arrival.intended_s + timeout_s, math.inf)
        return now_s

    def _count_error(self, arrival: Arrival, error: Exception) -> None:
        # The report covers the measurement, not the warm-up.
        if arrival.intended_s >= self._warmup_s:
            self.recording.count_error(error, _message(error))

    def _write(self, arrival: Arrival, outcome: Outcome, sent_s: float, done_s: float, answer: Answered) -> None:
        recording = self.recording
        recording.levels.change(done_s, -1)
        tally = self.tally_for(arrival.intended_s)
        if outcome == "failed":
            tally.failed += 1
        elif outcome == "cancelled":
            tally.cancelled += 1
        else:
            tally.succeeded += 1
        if tally is recording.tally:
            first_s = arrival.first_token_at - self._start
            recording.add(arrival, sent_s=sent_s, first_s=first_s, done_s=done_s, outcome=outcome, answer=answer)


def _is_cancellation(error: BaseException, kind: type[BaseException]) -> bool:
    """Return True for a cancellation of this event loop or of asyncio, also in groups with errors."""
    if isinstance(error, BaseExceptionGroup):
        parts = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return all(isinstance(part, Exception) or _is_cancellation(part, kind) for part in parts)
    # A library that is made for asyncio may raise it under trio, too. Then it has imported asyncio.
    return isinstance(error, (kind, getattr(sys.modules.get("asyncio"), "CancelledError", kind)))


def _message(error: Exception) -> str:
    try:
        return short_repr(str(error))
    except Exception:  # noqa: BLE001 - an error that has no text is an error nevertheless
        return short_repr(error)


async def _fail(error: Exception) -> NoReturn:  # noqa: ASYNC124 - a workload is async
    raise error
