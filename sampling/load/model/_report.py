"""
The report of a load run.

Its counts add up, its percentiles are exact, and its notes say how reliable it is.
"""

import json
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias, cast

import attrs

from sampling._json.bounded import loads
from sampling.load.model._profiles import ClosedLoop, OpenLoop, Profile, profile_from_dict
from sampling.load.model._recording import COLUMNS, OTHER_OPERATIONS, Recording
from sampling.load.model._schema import check_schema
from sampling.load.model._series import EMPTY, Summary
from sampling.load.model._slo import Slo
from sampling.load.model._stall import Stall
from sampling.load.model._units import format_seconds, format_share

__all__ = ["ANSWERED_SERIES", "Bin", "LoadReport", "Operation", "Verdict", "required_in_flight"]

Verdict: TypeAlias = Literal["PASS", "TRIP", "INCONCLUSIVE"]
"""The verdict on an SLO."""

ANSWERED_SERIES = (
    "latency",
    "service_time",
    "time_to_first_token",
    "time_per_output_token",
    "time_between_tokens",
    "time_to_valid",
)
"""The series of answered requests, in a report and in each of its operations."""

_SUMMARIES = (*ANSWERED_SERIES, "schedule_lag", "error_latency")
_LAG_SHARE = 0.1
"""A run is client-limited when its schedule lag is more than this share of the latency, both at p99."""

_LAG_FLOOR_S = 0.01
"""A schedule lag below this is within the precision of a timer and is ignored."""


@attrs.frozen(kw_only=True)
class Operation:
    """The results of one operation of a mix."""

    sent: int
    succeeded: int
    failed: int
    cancelled: int
    valid: int
    latency: Summary
    service_time: Summary
    time_to_first_token: Summary = EMPTY
    time_per_output_token: Summary = EMPTY
    time_between_tokens: Summary = EMPTY
    time_to_valid: Summary = EMPTY

    @property
    def error_rate(self) -> float | None:
        """Share of sent requests that failed or stayed unanswered, or None if nothing was sent."""
        return (self.failed + self.cancelled) / self.sent if self.sent else None

    @property
    def validity_rate(self) -> float | None:
        """Share of answers that were valid, or None if there were no answers."""
        return self.valid / self.succeeded if self.succeeded else None


@attrs.frozen(kw_only=True)
class Bin:
    """The results of the requests that were due in one interval."""

    at_s: float
    """The start of the interval, in seconds from the start of the measurement."""

    sent: int
    dropped: int
    missed: int
    failed: int
    in_flight: int
    """Requests in flight at the start of the interval."""

    latency: Summary
    service_time: Summary


@attrs.frozen(kw_only=True)
class LoadReport:
    """
    The report of a load run. Times are in seconds.

    Latency counts from the instant a request was due, and service time from the instant it was sent.
    The difference is the schedule lag, which the load generator itself causes.
    Latencies cover answered requests. Failed requests are in `error_latency`.
    """

    schema: ClassVar[str] = "sampling.load/1"

    profile: Profile
    seed: int
    workers: int = 1

    scheduled: int
    """Arrivals that were due (dropped + admitted)."""

    admitted: int
    """Arrivals that were sent (succeeded + failed + cancelled)."""

    dropped: int
    """Arrivals that were not sent, because the in-flight pool was full or because they were missed."""

    missed: int = 0
    """Dropped arrivals that were due while the machine or the event loop stood still."""

    succeeded: int
    """Requests that were answered (valid + invalid)."""

    failed: int
    cancelled: int
    """Requests that were unanswered at the end of the drain or of the run."""

    valid: int
    invalid: int
    good: int | None = None
    """Valid answers within the SLO, or None without an SLO."""

    slo: Slo | None = None
    warmup_sent: int = 0
    user_ends: Mapping[str, int] | None = None
    """Closed loop only: number of users by end (completed, cancelled, horizon, budget)."""

    active_users: int | None = None
    """Closed loop only: number of users that had started when the measurement began."""

    duration_s: float
    """Length of the measurement, without warm-up and drain."""

    elapsed_s: float
    """Length of the whole run, with warm-up and drain."""

    last_sent_s: float
    """The time at which the last request was sent, from the start of the measurement."""

    latency: Summary
    service_time: Summary
    schedule_lag: Summary
    time_to_first_token: Summary = EMPTY
    """Time from due to the first token, for workloads that report it."""

    time_per_output_token: Summary = EMPTY
    """
    Time from the first token to the end, per further token, of answers with several tokens from a single request.

    Other tools call this TPOT, or inter-token latency if they mean the average of a request.
    """

    time_between_tokens: Summary = EMPTY
    """The longest time between two tokens of each answer, or between two pieces of its stream."""

    time_to_valid: Summary = EMPTY
    """Latency of valid answers."""

    error_latency: Summary = EMPTY
    """Time from due to the failure, of failed requests."""

    peak_in_flight: int
    mean_in_flight: float
    backlog_growth: float
    """Growth of the number of requests in flight from the start of the measurement to its end."""

    backlog_slope: float | None
    """Growth of the number of requests in flight per second, by least squares."""

    errors: Mapping[str, int] = attrs.field(factory=dict[str, int])
    """Number of failed requests by type of error."""

    error_messages: Mapping[str, str] = attrs.field(factory=dict[str, str])
    """The first message of each type, escaped and truncated."""

    operations: Mapping[str, Operation] = attrs.field(factory=dict[str, Operation])
    requests: int = 0
    """Requests to the backend, as the workload reports them. Repairs and breadth send several per arrival."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    timeline: tuple[Bin, ...] = ()
    latency_distribution: tuple[tuple[float, float], ...] = ()
    """The cumulative distribution: (seconds, share of answers within that time), at even shares."""

    service_distribution: tuple[tuple[float, float], ...] = ()
    stalls: tuple[Stall, ...] = ()
    """Periods in which code blocked the event loop of the load generator. Not recorded in virtual time."""

    interrupted: bool = False
    exhausted: bool = False
    """True if the workload ran out of requests early."""

    ignored: Mapping[str, int] = attrs.field(factory=dict[str, int])
    """Number of invalid values in answers that were ignored, by name."""

    backoffs: int = 0
    """Closed loop only: number of pauses of users whose requests repeatedly failed at once."""

    verdict: Verdict | None = None
    """The verdict on the SLO, or None without an SLO."""

    reasons: tuple[str, ...] = ()
    """Reasons for a verdict other than PASS."""

    confidence: float | None = None
    """The confidence of a PASS, or None if it can't be computed."""

    about: Mapping[str, Any] = attrs.field(factory=dict[str, Any])
    """The measured workload, backend and strategy, the versions, and the time."""

    samples: Recording | None = attrs.field(default=None, eq=False, repr=False)
    """Every request, in columns, or None if the report was read from a file without them."""

    def __attrs_post_init__(self) -> None:
        broken = [f"{left} = {right}" for left, right, holds in self._invariants() if not holds]
        if broken:
            raise ValueError(f"the counts of this report do not add up: expected {' and '.join(broken)}")

    def _invariants(self) -> list[tuple[str, str, bool]]:
        return [
            ("scheduled", "dropped + admitted", self.scheduled == self.dropped + self.admitted),
            (
                "admitted",
                "succeeded + failed + cancelled",
                self.admitted == self.succeeded + self.failed + self.cancelled,
            ),
            ("succeeded", "valid + invalid", self.succeeded == self.valid + self.invalid),
            ("latency.count", "succeeded", self.latency.count == self.succeeded),
            ("missed", "at most dropped", self.missed <= self.dropped),
            (
                "user_ends",
                "users",
                self.user_ends is None
                or not isinstance(self.profile, ClosedLoop)
                or sum(self.user_ends.values()) == self.profile.users,
            ),
        ]

    # Derived from the counts.

    @property
    def model(self) -> str:
        """`open` or `closed`. The latencies of one are not comparable with those of the other."""
        return self.profile.model

    @property
    def target_rate(self) -> float | None:
        """The rate of the profile, if it has one."""
        return self.profile.rate

    @property
    def scheduled_rate(self) -> float:
        """Arrivals that were due per second. With random arrivals it differs from the target."""
        return self.scheduled / self.duration_s if self.duration_s else 0.0

    @property
    def achieved_rate(self) -> float:
        """Requests sent per second, over the time that it took to send them."""
        span_s = max(self.duration_s, self.last_sent_s)
        return self.admitted / span_s if span_s else 0.0

    @property
    def delivered_share(self) -> float | None:
        """Share of due arrivals that were sent, or None if nothing was due."""
        return self.admitted / self.scheduled if self.scheduled else None

    @property
    def answered_rate(self) -> float:
        """Answers per second after the warm-up. The time of the drain is included."""
        span_s = max(self.duration_s, self.elapsed_s - self.profile.warmup_s)
        return self.succeeded / span_s if span_s else 0.0

    @property
    def success_rate(self) -> float | None:
        """Share of sent requests that were answered, or None if nothing was sent."""
        return self.succeeded / self.admitted if self.admitted else None

    @property
    def error_rate(self) -> float | None:
        """Share of sent requests that failed or stayed unanswered, or None if nothing was sent."""
        return (self.failed + self.cancelled) / self.admitted if self.admitted else None

    @property
    def validity_rate(self) -> float | None:
        """Share of answers that were valid, or None if there were no answers."""
        return self.valid / self.succeeded if self.succeeded else None

    @property
    def goodput(self) -> float | None:
        """Valid answers within the SLO per second, or None without an SLO."""
        return None if self.good is None or not self.duration_s else self.good / self.duration_s

    @property
    def good_share(self) -> float | None:
        """
        Share of sent requests with a good answer.

        A good answer is valid and within the SLO. Dropped arrivals don't count.
        """
        return None if self.good is None or not self.admitted else self.good / self.admitted

    @property
    def suggested_in_flight(self) -> int | None:
        """
        A suggested `max_in_flight`, by Little's law.

        None if nothing was answered.
        On average `rate × mean service time` requests are in flight. A limit must leave room for slow ones, so this
        uses the 99th percentile instead of the mean.
        """
        return required_in_flight(self.achieved_rate, self.service_time.p99)

    @property
    def client_limit(self) -> str | None:
        """The reason why the load generator was the limit, or None if it was not."""
        if self.missed:
            return f"{self.missed} of {self.scheduled} arrivals were missed: the machine or the event loop stood still"
        lag, latency = self.schedule_lag.p99, self.latency.p99
        # Without an answer there is no latency that a late generator could have made worse.
        if lag is not None and latency is not None and lag > max(_LAG_FLOOR_S, _LAG_SHARE * latency):
            return (
                f"the load generator ran late: p99 schedule lag {format_seconds(lag)} of a p99 latency of "
                f"{format_seconds(latency)}; use more workers, or a lighter workload"
            )
        return None

    @property
    def client_limited(self) -> bool:
        """
        True if the load generator was the limit.

        Then the report says little about the server.
        """
        return self.client_limit is not None

    @property
    def blocked(self) -> str | None:
        """A sentence on the longest stall of the event loop, or None if there was none."""
        if not self.stalls:
            return None
        longest = max(self.stalls, key=lambda stall: stall.blocked_s)
        times = "once, for" if len(self.stalls) == 1 else f"{len(self.stalls)} times, for up to"
        when = "in the warm-up" if longest.at_s < 0 else f"at {format_seconds(longest.at_s)}"
        by = ", called from ".join(dict.fromkeys((longest.where[0], longest.where[-1])))
        return f"the event loop was blocked {times} {format_seconds(longest.blocked_s)} {when}, by {by}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings to read before relying on the numbers."""
        notes: list[str] = []
        if self.interrupted:
            notes.append("interrupted: the results cover only the time until then")
        if self.exhausted:
            notes.append("the workload ran out of requests early")
        notes += self._workload_notes()
        if self.client_limit is not None:
            notes.append(f"client-limited: {self.client_limit}")
        if self.blocked is not None:
            notes.append(self.blocked)
        if self.dropped - self.missed:
            notes.append(
                f"{self.dropped - self.missed} of {self.scheduled} arrivals were dropped, "
                f"with {_in_flight_limit(self.profile)} requests in flight"
            )
        if not self.admitted:
            notes.append("nothing was sent")
        if self.model == "closed":
            notes.append("closed loop: users wait for slow answers, so a stall hardly shows in these latencies")
        return tuple(notes)

    def _workload_notes(self) -> Iterator[str]:
        if self.ignored:
            figures = ", ".join(f"{name} {times:,} times" for name, times in self.ignored.items())
            yield f"answers had invalid numbers, which are ignored: {figures}"
        if self.backoffs:
            yield (
                f"users backed off {self.backoffs:,} times, because their requests failed at once: "
                "the number of requests says nothing about the server"
            )
        if OTHER_OPERATIONS in self.operations:
            yield f"there are too many operations: those after the first thousand are under {OTHER_OPERATIONS!r}"

    # Files.

    def to_dict(self, *, samples: bool = False) -> dict[str, Any]:
        """Return the report as a JSON-compatible dictionary. It contains every request if `samples` is true."""
        found: dict[str, Any] = {"schema": self.schema, "model": self.model}
        for field in attrs.fields(LoadReport):
            if field.name != "samples":
                found[field.name] = _to_json_value(getattr(self, field.name))
        if samples and self.samples is not None:
            found["samples"] = _columns(self.samples)
        return found

    def to_json(self, *, samples: bool = False) -> str:
        """Return the report as JSON for `from_json`. It contains every request if `samples` is true."""
        return json.dumps(self.to_dict(samples=samples), allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "LoadReport":
        """Rebuild a report from the result of `to_dict`."""
        check_schema(found, cls.schema, "load report")
        known = {field.name: found[field.name] for field in attrs.fields(cls) if field.name in found}
        known["profile"] = profile_from_dict(found["profile"])
        known["slo"] = None if found.get("slo") is None else Slo.from_dict(found["slo"])
        for name in _SUMMARIES:
            known[name] = Summary.from_dict(found[name]) if name in found else EMPTY
        known["operations"] = {
            name: Operation(**_with_summaries(numbers)) for name, numbers in found["operations"].items()
        }
        known["timeline"] = tuple(Bin(**_with_summaries(numbers)) for numbers in found["timeline"])
        known["stalls"] = tuple(Stall.from_dict(stall) for stall in found.get("stalls", ()))
        for name in ("latency_distribution", "service_distribution"):
            known[name] = tuple((value, share) for value, share in found[name])
        known["reasons"] = tuple(found.get("reasons", ()))
        known["samples"] = _recording(found["samples"]) if "samples" in found else None
        return cls(**known)

    @classmethod
    def from_json(cls, text: str) -> "LoadReport":
        """Read a report from JSON."""
        return cls.from_dict(loads(text))

    def __str__(self) -> str:
        rate = f" at {self.target_rate:g}/s" if self.target_rate is not None else ""
        parts = [f"{self.model} loop{rate}: {self.admitted} of {self.scheduled} sent in {self.duration_s:g} s"]
        counts = {"failed": self.failed, "cancelled": self.cancelled, "invalid": self.invalid}
        parts += [f"{count} {name}" for name, count in counts.items() if count]
        if self.latency.p50 is not None and self.latency.p99 is not None:
            parts.append(f"latency p50 {format_seconds(self.latency.p50)}, p99 {format_seconds(self.latency.p99)}")
        if self.good_share is not None:
            parts.append(f"goodput {format_share(self.good_share)}")
        return " · ".join([*parts, *self.notes[:2]])


def required_in_flight(rate: float, service_s: float | None) -> int | None:
    """
    Return the requests in flight, by Little's law.

    That is the rate multiplied by the service time, rounded up.
    """
    # Round first: 20 × 0.5 must not become 11 because of a floating-point error.
    return None if service_s is None else max(1, math.ceil(round(rate * service_s, 6)))


def _in_flight_limit(profile: Profile) -> int:
    return profile.max_in_flight if isinstance(profile, OpenLoop) else profile.users


# Conversion from and to JSON.


def _to_json_value(value: Any) -> Any:
    """Convert a value of the report to JSON types."""
    if isinstance(value, OpenLoop | ClosedLoop | Slo):
        return value.to_dict()
    if isinstance(value, Summary | Bin | Operation | Stall):
        return attrs.asdict(value)
    if isinstance(value, Mapping):
        return {key: _to_json_value(item) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, tuple):
        return [_to_json_value(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def _with_summaries(numbers: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: Summary.from_dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value
        for key, value in numbers.items()
    }


def _columns(recording: Recording) -> dict[str, Any]:
    """Convert the samples to JSON types. A missing first token is null."""
    return {
        "operations": list(recording.operations),
        **{name: [None if value != value else value for value in column] for name, column in recording.columns.items()},  # noqa: PLR0124
    }


def _recording(columns: Mapping[str, Sequence[Any]]) -> Recording:
    recording = Recording(1.0)
    recording.name_operations([str(name) for name in columns["operations"]])
    unknown = [None] * len(columns["done_s"])
    for name, code in COLUMNS.items():
        values = columns.get(name, unknown)
        recording.columns[name] = array(code, (math.nan if value is None else value for value in values))
    return recording
