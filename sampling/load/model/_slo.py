"""What a service must hold: limits on latencies, errors, validity and backlog. Pure."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, cast

import attrs

from sampling._arguments import check_number, check_str, shown, wrong_type
from sampling.load.model._units import format_seconds, format_share, parse_count, parse_duration, parse_share

__all__ = ["LatencyLimit", "Slo"]

_SERIES = {"": "latency", "ttft_": "time_to_first_token", "valid_": "time_to_valid"}
_LATENCY_FIELDS = tuple(f"{prefix}p{percent}_s" for prefix in _SERIES for percent in (50, 90, 95, 99))
_SHORT_NAMES = {"error": "error_rate", "validity": "validity_rate", "max": "max_s", "valid": "validity_rate"}


@attrs.frozen
class LatencyLimit:
    """A percentile of one of the report's series, and what it may be at most."""

    name: str
    """As in a reason: `p95`, `ttft_p99`, `max`."""

    series: str
    """The field of the report: `latency`, `time_to_first_token` or `time_to_valid`."""

    percent: int
    limit_s: float


@attrs.frozen(kw_only=True)
class Slo:
    """
    A service level objective. Whatever is not set is not looked at; exactly at a limit still passes.

    Latencies count from the instant a request was due, and only of requests that were answered:
    a server that fails fast is caught by `error_rate`, not flattered by its latencies.
    """

    p50_s: float | None = None
    p90_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None

    ttft_p50_s: float | None = None
    """Time to first token, for workloads that tell when it came."""

    ttft_p90_s: float | None = None
    ttft_p95_s: float | None = None
    ttft_p99_s: float | None = None

    valid_p50_s: float | None = None
    """Time to a valid answer: repairs and all, of those requests that got one."""

    valid_p90_s: float | None = None
    valid_p95_s: float | None = None
    valid_p99_s: float | None = None

    error_rate: float | None = None
    """The largest share of sent requests that may fail, or stay unanswered."""

    validity_rate: float | None = None
    """The smallest share of answers that must be valid."""

    backlog: float | None = None
    """By how many unanswered requests the backlog may grow during the measurement."""

    backlog_slope: float | None = None
    """By how many unanswered requests it may grow per second, by a straight line through it."""

    operations: Mapping[str, "Slo"] = attrs.field(factory=lambda: cast("dict[str, Slo]", {}))
    """Limits for single operations of a mix, by name."""

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(Slo):
            value = getattr(self, field.name)
            if field.name == "operations" or value is None:
                continue
            check_number(field.name, value, **({"above": 0} if field.name.endswith("_s") else {"least": 0}))
            if field.name.endswith("_rate") and value > 1:
                raise ValueError(f"{field.name} is a share and must be <= 1, got {value} (write 0.1% as 0.001)")
        if not isinstance(self.operations, Mapping):
            raise wrong_type("operations", self.operations, "a mapping of names to Slo")
        for name, slo in self.operations.items():
            check_str("a name in operations", name, empty=False)
            if not isinstance(slo, Slo):
                raise wrong_type(f"operations[{name!r}]", slo, "a Slo")
        object.__setattr__(self, "operations", MappingProxyType(dict(self.operations)))

    @property
    def is_empty(self) -> bool:
        """Whether no limit is set at all."""
        return not any(True for _ in self._set())

    def _set(self) -> Iterator[tuple[str, Any]]:
        for field in attrs.fields(Slo):
            value = getattr(self, field.name)
            if value is not None and not (field.name == "operations" and not value):
                yield field.name, value

    @property
    def latency_limits(self) -> tuple[LatencyLimit, ...]:
        """All limits on percentiles that are set."""
        limits: list[LatencyLimit] = []
        for prefix, series in _SERIES.items():
            for percent in (50, 90, 95, 99):
                limit = getattr(self, f"{prefix}p{percent}_s")
                if limit is not None:
                    limits.append(LatencyLimit(f"{prefix}p{percent}", series, percent, limit))
        if self.max_s is not None:
            limits.append(LatencyLimit("max", "latency", 100, self.max_s))
        return tuple(limits)

    @property
    def tightest_s(self) -> float | None:
        """The smallest limit on any latency, those of operations included; None if there is none."""
        own = [limit.limit_s for limit in self.latency_limits]
        nested = [slo.tightest_s for slo in self.operations.values()]
        return min([*own, *(limit for limit in nested if limit is not None)], default=None)

    @property
    def request_limits(self) -> Mapping[str, float]:
        """What a single request must keep to be good, by series: the limit of the highest percentile that is set."""
        limits: dict[str, tuple[int, float]] = {}
        for limit in self.latency_limits:
            limits[limit.series] = max(limits.get(limit.series, (0, 0.0)), (limit.percent, limit.limit_s))
        return {series: limit_s for series, (_, limit_s) in limits.items()}

    @classmethod
    def parse(cls, text: str) -> "Slo":
        """
        Read limits from one line: `p95=2s,ttft_p99=500ms,error=0.1%,validity=95%,backlog=20`.

        A limit for one operation of a mix has its name in front: `chat.p95=1s`.
        """
        limits: dict[str, float] = {}
        operations: dict[str, list[str]] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, equals, value = part.partition("=")
            operation, dot, metric = name.strip().rpartition(".")
            if not equals:
                raise ValueError(f"an SLO is written as metric=limit, such as p95=2s, got {part!r}")
            if dot:
                operations.setdefault(operation, []).append(f"{metric}={value}")
                continue
            field, parse = _field_and_parser(metric)
            if field in limits:
                raise ValueError(f"{metric} is limited twice in {text!r}: keep one of them")
            limits[field] = parse(metric, value)
        slo = cls(**limits, operations={name: cls.parse(",".join(parts)) for name, parts in operations.items()})
        if slo.is_empty:
            raise ValueError("an SLO needs at least one limit, such as p95=2s or error=0.1%")
        return slo

    def to_dict(self) -> dict[str, Any]:
        """Return what is set, as JSON can hold it."""
        return {
            name: {key: slo.to_dict() for key, slo in value.items()} if name == "operations" else value
            for name, value in self._set()
        }

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> "Slo":
        """Make one out of what `to_dict` gave."""
        operations = {name: cls.from_dict(limits) for name, limits in settings.get("operations", {}).items()}
        limits: dict[str, Any] = {**settings, "operations": operations}
        return cls(**limits)

    def __str__(self) -> str:
        parts: list[str] = []
        for name, value in self._set():
            if name == "operations":
                parts += [f"{operation}.{part}" for operation, slo in value.items() for part in str(slo).split(",")]
            elif name.endswith("_s"):
                parts.append(f"{name.removesuffix('_s')}={format_seconds(value, 6)}")
            elif name.endswith("_rate"):
                parts.append(f"{name.removesuffix('_rate')}={format_share(value, 6)}")
            else:
                parts.append(f"{name}={value:g}")
        return ",".join(parts)


def _field_and_parser(metric: str) -> tuple[str, Callable[[str, str], float]]:
    """Return the field that a metric's name stands for, and how its limit is read."""
    field = _SHORT_NAMES.get(metric, metric)
    if f"{field}_s" in _LATENCY_FIELDS:
        field = f"{field}_s"
    if field in _LATENCY_FIELDS or field == "max_s":
        return field, parse_duration
    if field in ("error_rate", "validity_rate"):
        return field, parse_share
    if field in ("backlog", "backlog_slope"):
        return field, parse_count
    known = [
        *(name.removesuffix("_s") for name in _LATENCY_FIELDS),
        "max",
        "error",
        "validity",
        "backlog",
        "backlog_slope",
    ]
    raise ValueError(f"no such SLO metric: {shown(metric)}; there are {', '.join(known)}")
