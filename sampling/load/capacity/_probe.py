"""Poll the length of the server's queue during a step."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import anyio

from sampling._arguments import check_number, short_repr
from sampling._log import Logger
from sampling.load.model._series import slope
from sampling.load.model._verdict import Backlog

__all__ = ["BacklogMonitor", "BacklogProbe"]

log = Logger()

BacklogProbe: TypeAlias = Callable[[], Awaitable[float | None]]
"""Returns the number of requests in the server's queue, or None if there is no such queue, or no longer."""

_POLLS = 30
"""Number of polls per measurement."""

_TRIES = 3


class BacklogMonitor:
    """Polls the queue during a measurement."""

    def __init__(self, probe: BacklogProbe, *, timeout_s: float) -> None:
        self._probe = probe
        self._timeout_s = timeout_s
        self._times: list[float] = []
        self._values: list[float] = []
        self._disappeared = False
        self._warning: str | None = None

    @property
    def backlog(self) -> Backlog:
        """The result of the polls so far."""
        growth = self._values[-1] - self._values[0] if self._values else None
        return Backlog(growth, slope(self._times, self._values), self._disappeared, self._warning)

    async def watch(self, warmup_s: float, measured_s: float) -> None:
        """Poll at even intervals. Repeated failures end the polling, but not the run."""
        start = anyio.current_time() + warmup_s
        for poll in range(_POLLS + 1):
            await anyio.sleep_until(start + measured_s * poll / _POLLS)
            if not await self._poll(start):
                return

    async def _poll(self, start: float) -> bool:
        problem = ""
        for _ in range(_TRIES):
            try:
                with anyio.fail_after(self._timeout_s):
                    waiting = await self._probe()
                self._record(waiting, anyio.current_time() - start)
            except Exception as error:  # noqa: BLE001 - a probe is not what is measured: it must not end the run
                problem = f"{type(error).__name__}: {short_repr(str(error))}"
                await anyio.sleep(0.1)
            else:
                return True
        self._warning = f"the backlog probe failed {_TRIES} times ({problem}): the backlog is not judged"
        log.warning("backlog_probe_failed", error=problem, tries=_TRIES)
        return False

    def _record(self, waiting: float | None, at_s: float) -> None:
        if waiting is None:
            self._disappeared |= bool(self._values)
            return
        self._values.append(float(check_number("the result of the backlog probe", waiting)))
        self._times.append(at_s)
