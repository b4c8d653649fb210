"""Service level objectives: limits on latencies, errors, validity and backlog."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, cast

import attrs

from sampling._arguments import check_number, check_str, short_repr, wrong_type
from sampling.load.model._units import format_seconds, format_share, parse_count, parse_duration, parse_share

__all__ = ["LatencyLimit", "Slo"]

_SERIES = {
    "": "latency",
    "ttft_": "time_to_first_token",
    "tpot_": "time_per_output_token",
    "itl_": "time_between_tokens",
    "valid_": "time_to_valid",
}
_LATENCY_FIELDS = tuple(f"{prefix}p{percent}_s" for prefix in _SERIES for percent in (50, 90, 95, 99))
_NO_LIMIT = "none"
_SHORT_NAMES = {"error": "error_rate", "validity": "validity_rate", "max": "max_s", "valid": "validity_rate"}


@attrs.frozen
class LatencyLimit:
    """An upper limit on a percentile of a series."""

    name: str
    """The name in reasons: `p95`, `ttft_p99`, `max`."""

    series: str
    """The field of the report, such as `latency` or `time_to_first_token`."""

    percent: int
    limit_s: float

    @property
    def is_from_due(self) -> bool:
        """True for times that count from when a request was due, so that waiting makes them longer."""
        return self.series not in ("time_per_output_token", "time_between_tokens")


@attrs.frozen(kw_only=True)
class Slo:
    """
    A service level objective.

    A value exactly at its limit passes.
    Latencies count from the instant a request was due. Limits on them apply to every request that was due: one that
    failed, was dropped or was never answered exceeds every limit. So a server can't pass by failing fast.
    """

    p50_s: float | None = None
    p90_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None

    ttft_p50_s: float | None = None
    """Time to first token, for workloads that report it."""

    ttft_p90_s: float | None = None
    ttft_p95_s: float | None = None
    ttft_p99_s: float | None = None

    tpot_p50_s: float | None = None
    """Time per output token after the first, the average of a request."""

    tpot_p90_s: float | None = None
    tpot_p95_s: float | None = None
    tpot_p99_s: float | None = None

    itl_p50_s: float | None = None
    """Time between two tokens, the longest of a request."""

    itl_p90_s: float | None = None
    itl_p95_s: float | None = None
    itl_p99_s: float | None = None

    valid_p50_s: float | None = None
    """Time to a valid answer, including repairs, of requests that got one."""

    valid_p90_s: float | None = None
    valid_p95_s: float | None = None
    valid_p99_s: float | None = None

    error_rate: float | None = 0.01
    """Maximum share of sent requests that fail or stay unanswered. None removes this limit."""

    validity_rate: float | None = None
    """Minimum share of answers that are valid."""

    backlog: float | None = None
    """Maximum growth of the number of unanswered requests during the measurement."""

    backlog_slope: float | None = None
    """Maximum growth of the number of unanswered requests per second, by least squares."""

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

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only view of a dictionary can't be pickled.
        return type(self).from_dict, (self.to_dict(),)

    @property
    def is_empty(self) -> bool:
        """True if no limit is set."""
        return not any(True for _ in self._set())

    def _set(self) -> Iterator[tuple[str, Any]]:
        for field in attrs.fields(Slo):
            value = getattr(self, field.name)
            if value is not None and not (field.name == "operations" and not value):
                yield field.name, value

    @property
    def latency_limits(self) -> tuple[LatencyLimit, ...]:
        """All limits on percentiles."""
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
        """The smallest limit on a time from due, or None. The limits of operations count, too."""
        own = [limit.limit_s for limit in self.latency_limits if limit.is_from_due]
        nested = [slo.tightest_s for slo in self.operations.values()]
        return min([*own, *(limit for limit in nested if limit is not None)], default=None)

    @property
    def request_limits(self) -> Mapping[str, float]:
        """
        The limits of a single good request, by series.

        They are those of the highest percentiles that are set.
        """
        limits: dict[str, tuple[int, float]] = {}
        for limit in self.latency_limits:
            limits[limit.series] = max(limits.get(limit.series, (0, 0.0)), (limit.percent, limit.limit_s))
        return {series: limit_s for series, (_, limit_s) in limits.items()}

    @classmethod
    def parse(cls, text: str) -> "Slo":
        """
        Parse limits: `p95=2s,ttft_p99=500ms,error=0.1%,validity=95%,backlog=20`.

        Prefix a limit with the name of an operation of a mix: `chat.p95=1s`. `error=none` removes the default limit.
        """
        limits: dict[str, float | None] = {}
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
            removed = field == "error_rate" and value.strip() == _NO_LIMIT
            limits[field] = None if removed else parse(metric, value)
        nested: Any = {name: cls.parse(",".join(parts)) for name, parts in operations.items()}
        found: dict[str, Any] = {**limits, "operations": nested}
        slo = cls(**found)
        if slo.is_empty or not (limits or nested):
            raise ValueError("an SLO needs at least one limit, such as p95=2s or error=0.1%")
        return slo

    def to_dict(self) -> dict[str, Any]:
        """Return the limits that are set as a JSON-compatible dictionary. The error limit is in it even if None."""
        return {
            "error_rate": self.error_rate,
            **{
                name: {key: slo.to_dict() for key, slo in value.items()} if name == "operations" else value
                for name, value in self._set()
            },
        }

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> "Slo":
        """Rebuild an SLO from the result of `to_dict`."""
        operations = {name: cls.from_dict(limits) for name, limits in settings.get("operations", {}).items()}
        limits: dict[str, Any] = {"error_rate": None, **settings, "operations": operations}
        return cls(**limits)

    def __str__(self) -> str:
        parts: list[str] = [f"error={_NO_LIMIT}"] if self.error_rate is None else []
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
    """Return the field and the parser of a metric."""
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
    raise ValueError(f"no such SLO metric: {short_repr(metric)}; there are {', '.join(known)}")
