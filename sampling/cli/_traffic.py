"""Build a traffic profile from flags."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from sampling._arguments import short_repr
from sampling.cli._files import read_input
from sampling.load import ClosedLoop, OpenLoop, Profile, read_trace
from sampling.load.model._units import parse_count, parse_duration

__all__ = ["Traffic"]


@attrs.frozen(kw_only=True)
class Traffic:
    """The traffic flags, or None for those not given."""

    rate: str | None = None
    users: int | None = None
    trace: Path | None = None
    duration: str | None = None
    requests: int | None = None
    to_rate: str | None = None
    arrivals: str | None = None
    burst: int | None = None
    max_in_flight: int | None = None
    think_time: str | None = None
    on_error: str | None = None
    warmup: str = "0s"
    drain: str = "60s"
    timeout: str | None = None

    def profile(self) -> Profile:
        """Return the traffic profile, or raise ValueError."""
        given = [name for name in ("rate", "users", "trace") if getattr(self, name) is not None]
        if not given:
            raise ValueError("give the traffic: --rate 50 (open loop), --users 20 (closed loop), or --trace FILE")
        if len(given) > 1:
            raise ValueError(
                f"{' and '.join(f'--{name}' for name in given)} contradict each other: a rate and a trace are open "
                "loops, users are a closed loop. Keep one of them"
            )
        if self.trace is None and self.duration is None and self.requests is None:
            raise ValueError(f"--{given[0]} needs an end: add --duration 30s, or --requests 1000")
        return self._closed(self.users) if self.users is not None else self._open(given[0])

    def _closed(self, users: int) -> ClosedLoop:
        self._refuse(
            ("to_rate", "arrivals", "burst", "max_in_flight"), "for --rate: users send when they have an answer"
        )
        settings: dict[str, Any] = {"on_error": self.on_error} if self.on_error is not None else {}
        common = self._common()
        duration_s = _seconds("duration", self.duration)
        return ClosedLoop(
            users=users,
            requests=self.requests,
            # The horizon of a closed loop includes the warm-up, and --duration does not.
            horizon_s=None if duration_s is None else duration_s + common["warmup_s"],
            think_time_s=_seconds("think-time", self.think_time) or 0.0,
            **common,
            **settings,
        )

    def _open(self, kind: str) -> OpenLoop:
        self._refuse(("think_time", "on_error"), "for --users: an open loop does not wait for answers")
        if kind == "trace":
            self._refuse(("to_rate", "arrivals", "burst"), "for --rate: a trace has its own send times")
        if self.burst is not None and self.arrivals != "burst":
            raise ValueError("--burst needs --arrivals burst")
        settings: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("arrivals", "burst", "max_in_flight", "requests")
            if getattr(self, name) is not None
        }
        return OpenLoop(
            rate=None if self.rate is None else parse_count("--rate", self.rate),
            to_rate=None if self.to_rate is None else parse_count("--to-rate", self.to_rate),
            trace=None if self.trace is None else _trace(self.trace),
            duration_s=_seconds("duration", self.duration),
            **self._common(),
            **settings,
        )

    def _common(self) -> dict[str, Any]:
        return {
            "warmup_s": _seconds("warmup", self.warmup),
            "drain_s": _seconds("drain", self.drain),
            "timeout_s": _seconds("timeout", self.timeout),
        }

    def _refuse(self, names: Sequence[str], why: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise ValueError(f"--{name.replace('_', '-')} is {why}. Leave it out")


def _seconds(name: str, text: str | None) -> float | None:
    return None if text is None else parse_duration(f"--{name}", text)


def _trace(path: Path) -> tuple[float, ...]:
    text = read_input("--trace", path)
    try:
        return read_trace(text)
    except ValueError as error:
        raise ValueError(f"--trace: {short_repr(path.name)}: {error}") from None
