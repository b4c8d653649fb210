"""Traffic profiles. `OpenLoop` sends on a schedule, `ClosedLoop` sends after each answer."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import attrs

from sampling._arguments import check_int, check_items, check_number, short_repr, wrong_type

__all__ = ["MOST_USERS", "ArrivalModel", "ClosedLoop", "OpenLoop", "Profile", "Shape", "profile_from_dict"]

ArrivalModel: TypeAlias = Literal["constant", "poisson", "burst"]
"""The distribution of arrivals: even, random, or several at once."""

Shape: TypeAlias = Callable[[float], float]
"""The factor of the rate at each fraction (0 to 1) of the measured time, for example a daily curve."""

MOST_USERS = 10_000_000
"""Maximum number of users. Each is a task, and no machine has the memory for more."""

_CONTRADICTION = (
    "rate and users contradict each other: a rate sends on a schedule (OpenLoop), "
    "users wait for their answers (ClosedLoop)"
)


@attrs.frozen(kw_only=True)
class OpenLoop:
    """
    Traffic on a schedule that does not wait for answers.

    Real users behave like this: they do not know that the server is slow, and keep arriving.
    Arrival `i` is at `i / rate` seconds, whatever happens. An arrival that finds `max_in_flight` unanswered requests
    is dropped and counted, so that a stalled server can't exhaust the client machine.
    """

    model: ClassVar[str] = "open"

    rate: float | None = None
    """Arrivals per second, or the initial rate with `to_rate`. Omit it only with `trace`."""

    duration_s: float | None = None
    """Length without the warm-up. Set this, `requests`, or both, and the first limit reached ends the run."""

    max_in_flight: int = 256
    """Maximum number of unanswered requests. Arrivals beyond it are dropped and counted."""

    arrivals: ArrivalModel = "constant"
    burst: int = 10
    """Arrivals per burst with `arrivals="burst"`. The gaps between bursts keep the average rate."""

    to_rate: float | None = None
    """The final rate of a linear ramp over `duration_s`."""

    shape: Shape | None = attrs.field(default=None, eq=False)
    trace: tuple[float, ...] | None = attrs.field(default=None, repr=False)
    """Recorded arrival times to replay, in seconds from the start, ascending."""

    requests: int | None = None
    warmup_s: float = 0.0
    """Length of the traffic before the measurement. It has the same pace and is not counted."""

    drain_s: float | None = 60.0
    """Time to wait for answers after the last arrival. Requests still unanswered count as cancelled."""

    timeout_s: float | None = None
    """Time from sending a request after which it is cancelled and counts as failed."""

    late_limit_s: float = 10.0
    """Arrivals that are later than this count as missed and are not sent."""

    users: None = None
    """Always None: a profile has a rate or users, not both."""

    def __attrs_post_init__(self) -> None:
        if self.users is not None:
            raise ValueError(_CONTRADICTION)
        if self.trace is not None:
            self._check_trace(self.trace)
        else:
            self._check_rate()
        if self.duration_s is not None:
            check_number("duration_s", self.duration_s, above=0)
        if self.requests is not None:
            check_int("requests", self.requests, least=0)
        check_int("max_in_flight", self.max_in_flight, least=1)
        check_number("warmup_s", self.warmup_s, least=0)
        if self.drain_s is not None:
            check_number("drain_s", self.drain_s, least=0)
        if self.timeout_s is not None:
            check_number("timeout_s", self.timeout_s, above=0)
        check_number("late_limit_s", self.late_limit_s, above=0)

    def _check_rate(self) -> None:
        if self.rate is None:
            raise ValueError("an OpenLoop needs a rate (arrivals per second), or a trace of instants")
        # A rate of 0 or infinity would schedule all arrivals at the same time.
        check_number("rate", self.rate, above=0)
        if self.arrivals not in get_args(ArrivalModel):
            raise ValueError(
                f"arrivals must be one of {', '.join(get_args(ArrivalModel))}, got {short_repr(self.arrivals)}"
            )
        check_int("burst", self.burst, least=1)
        if self.duration_s is None and self.requests is None:
            raise ValueError("an OpenLoop needs an end: set duration_s, or requests, or both")
        if self.to_rate is not None or self.shape is not None:
            self._check_change()

    def _check_change(self) -> None:
        """Check a rate that changes during the run."""
        if self.to_rate is not None:
            check_number("to_rate", self.to_rate, above=0)
            if self.shape is not None:
                raise ValueError("to_rate and shape contradict each other: set one of them")
        if self.duration_s is None:
            raise ValueError("a ramp (to_rate) or a shape needs duration_s, over which it is spread")
        if self.arrivals == "burst":
            raise ValueError("bursts need a constant rate: omit to_rate and shape, or use arrivals='poisson'")
        if self.shape is not None and not callable(self.shape):
            raise wrong_type("shape", self.shape, "a function of a fraction of the duration")

    def _check_trace(self, trace: tuple[float, ...]) -> None:
        if self.rate is not None or self.to_rate is not None or self.shape is not None:
            raise ValueError("trace and rate contradict each other: a trace has its own instants, omit the rate")
        instants = check_items("trace", trace, "instants in seconds, ascending")
        earlier = 0.0
        for number, instant in enumerate(instants):
            if check_number(f"trace[{number}]", instant, least=0) < earlier:
                raise ValueError(f"trace[{number}] must be >= the instant before it ({earlier}), got {instant}")
            earlier = instant
        object.__setattr__(self, "trace", tuple(instants))

    @property
    def measured_s(self) -> float | None:
        """Length of the measurement, if it is known. With both limits it is that of the first reached at `rate`."""
        if self.trace is not None and self.duration_s is None:
            return max(self.trace[-1] - self.warmup_s, 0.0) if self.trace else 0.0
        if self.duration_s is None and self.requests is not None and self.rate is not None:
            return self.requests / self.rate
        if self.duration_s is not None and self.requests is not None and self._is_steady:
            return min(self.duration_s, self.requests / (self.rate or 1.0))
        return self.duration_s

    @property
    def _is_steady(self) -> bool:
        return self.rate is not None and self.to_rate is None and self.shape is None and self.arrivals == "constant"

    def to_dict(self) -> dict[str, Any]:
        """
        Return the settings as a JSON-compatible dictionary.

        A shape is code, so only its name is stored.
        """
        return {"model": self.model, **attrs.asdict(self), "shape": _name_of(self.shape)}


@attrs.frozen(kw_only=True)
class ClosedLoop:
    """
    Traffic of a fixed number of users.

    Each user waits for an answer before the next request.
    It measures the service that a fixed number of callers get, not that of independent arrivals: when the server
    stalls, the users stop sending, and the stall hardly shows in the latencies.
    """

    model: ClassVar[str] = "closed"

    users: int
    requests: int | None = None
    """Total number of requests of all users."""

    think_time_s: float = 0.0
    """Pause between an answer and the next request of the same user."""

    horizon_s: float | None = None
    """No request starts after this many seconds, including the warm-up."""

    on_error: Literal["continue", "cancel"] = "continue"
    """`continue` after a failed request, or `cancel` its user, for conversations that can't continue."""

    warmup_s: float = 0.0
    """Requests that start before this are not counted."""

    activate_per_s: float | None = None
    """Maximum number of users that start per second. None spreads them over the think time."""

    drain_s: float | None = 60.0
    """Time to wait for answers after the horizon, or after the last request. Then they count as cancelled."""

    timeout_s: float | None = None
    """Time from sending a request after which it is cancelled and counts as failed."""

    rate: None = None
    """Always None: a profile has a rate or users, not both."""

    def __attrs_post_init__(self) -> None:
        if self.rate is not None:
            raise ValueError(_CONTRADICTION)
        check_int("users", self.users, least=1, most=MOST_USERS)
        check_number("think_time_s", self.think_time_s, least=0)
        check_number("warmup_s", self.warmup_s, least=0)
        if self.on_error not in ("continue", "cancel"):
            raise ValueError(f"on_error must be 'continue' or 'cancel', got {short_repr(self.on_error)}")
        if self.activate_per_s is not None:
            check_number("activate_per_s", self.activate_per_s, above=0)
        if self.drain_s is not None:
            check_number("drain_s", self.drain_s, least=0)
        if self.timeout_s is not None:
            check_number("timeout_s", self.timeout_s, above=0)
        self._check_end()

    def _check_end(self) -> None:
        if self.requests is None and self.horizon_s is None:
            raise ValueError("a ClosedLoop needs an end: set requests, or horizon_s, or both")
        if self.requests is not None:
            check_int("requests", self.requests, least=0)
        if self.horizon_s is not None:
            check_number("horizon_s", self.horizon_s, above=0)
            if self.warmup_s >= self.horizon_s:
                raise ValueError(f"warmup_s must be < horizon_s ({self.horizon_s:g}), got {self.warmup_s:g}")

    @property
    def measured_s(self) -> float | None:
        """Length of the measurement, if it is known."""
        return None if self.horizon_s is None else self.horizon_s - self.warmup_s

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as a JSON-compatible dictionary."""
        return {"model": self.model, **attrs.asdict(self)}


Profile: TypeAlias = OpenLoop | ClosedLoop
"""A traffic profile, open or closed."""


def profile_from_dict(settings: Mapping[str, Any]) -> Profile:
    """
    Rebuild a profile from the result of `to_dict`.

    A shape is code and is not restored.
    """
    kinds: dict[str, type[OpenLoop | ClosedLoop]] = {"open": OpenLoop, "closed": ClosedLoop}
    model = settings.get("model")
    if model not in kinds:
        raise ValueError(f"model must be 'open' or 'closed', got {short_repr(model)}")
    kind = kinds[model]
    known = {field.name for field in attrs.fields(kind)}
    given = {name: value for name, value in settings.items() if name in known and name != "shape"}
    if given.get("trace") is not None:
        given["trace"] = tuple(given["trace"])
    return kind(**given)


def _name_of(function: Callable[..., object] | None) -> str | None:
    return None if function is None else getattr(function, "__qualname__", type(function).__name__)
