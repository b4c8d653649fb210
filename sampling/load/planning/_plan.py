"""Find the cheapest depth × breadth that meets an SLO."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import attrs

from sampling._arguments import check_instance, check_int, check_number
from sampling._json.bounded import loads
from sampling._text import aligned
from sampling.load.model._profiles import OpenLoop
from sampling.load.model._report import LoadReport
from sampling.load.model._schema import build
from sampling.load.model._slo import Slo
from sampling.load.model._units import format_seconds, format_share
from sampling.load.model._verdict import Judgement, judge
from sampling.load.planning._server_model import ServerModel
from sampling.load.planning._simulation import simulate
from sampling.usage import Price

__all__ = ["Option", "Plan", "plan"]

_NO_PRICE = Price(0.0, 0.0)


@attrs.frozen(kw_only=True)
class Option:
    """One depth × breadth with its simulated results."""

    depth: int
    breadth: int
    judgement: Judgement
    report: LoadReport

    @property
    def holds(self) -> bool:
        """True if it meets the SLO."""
        return self.judgement.verdict == "PASS"

    @property
    def cost_per_call(self) -> float:
        """Average cost of a call."""
        return self.report.cost / self.report.admitted if self.report.admitted else 0.0

    @property
    def cost_per_valid(self) -> float | None:
        """Cost per valid answer, or None without any. The cost of invalid answers is included."""
        return self.report.cost / self.report.valid if self.report.valid else None

    @property
    def tokens_per_call(self) -> float:
        """Average number of input and output tokens of a call."""
        tokens = self.report.input_tokens + self.report.output_tokens
        return tokens / self.report.admitted if self.report.admitted else 0.0

    @property
    def requests_per_call(self) -> float:
        """Average number of requests to the server per call."""
        return self.report.requests / self.report.admitted if self.report.admitted else 0.0

    @property
    def price(self) -> tuple[float, float, int]:
        """The sort key of options, cheapest first. Cost comes first, then tokens, then breadth."""
        return self.cost_per_call, self.tokens_per_call, self.breadth

    def __str__(self) -> str:
        return f"{self.depth} deep × {self.breadth} wide"


@attrs.frozen(kw_only=True)
class Plan:
    """All simulated options, and the best of them."""

    schema: ClassVar[str] = "sampling.plan/1"
    columns: ClassVar[tuple[str, ...]] = (
        "depth", "breadth", "verdict", "valid_share", "p50_s", "p95_s", "p99_s", "requests_per_call",
        "cost_per_call", "cost_per_valid", "tokens_per_call", "reasons",
    )  # fmt: skip

    server: ServerModel
    rate: float
    slo: Slo
    price: Price | None
    options: tuple[Option, ...]

    @property
    def best(self) -> Option | None:
        """The cheapest option that meets the SLO, if any."""
        return min((option for option in self.options if option.holds), key=lambda option: option.price, default=None)

    @property
    def cost_per_hour(self) -> float | None:
        """Cost per hour of the best option, or None without a price or a best option."""
        return None if self.best is None or self.price is None else self.best.cost_per_call * self.rate * 3600

    @property
    def exit_code(self) -> int:
        """0 if an option meets the SLO, 1 otherwise."""
        return 0 if self.best is not None else 1

    def rows(self) -> list[list[object]]:
        """Return one row per option, in the order of `columns`."""
        return [
            [
                option.depth,
                option.breadth,
                option.judgement.verdict,
                option.report.validity_rate,
                option.report.latency.p50,
                option.report.latency.p95,
                option.report.latency.p99,
                option.requests_per_call,
                option.cost_per_call,
                option.cost_per_valid,
                option.tokens_per_call,
                "; ".join(option.judgement.reasons),
            ]
            for option in self.options
        ]

    def render(self) -> str:
        """Return a table of all options and the best."""
        money = self.price is not None
        header = ["", "valid", "p50", "p95", "p99", "requests", "cost/call" if money else "tokens/call", "verdict"]
        rows = [header, *(self._cells(option, money=money) for option in self.options)]
        marks = ["", *(f"  {'; '.join(option.judgement.reasons)}" for option in self.options)]
        lines = [f"{line}{mark}".rstrip() for line, mark in zip(aligned(rows), marks, strict=True)]
        return "\n".join(
            [f"server: {self.server}", f"at {self.rate:g} per second, {self.slo}", "", *lines, "", str(self)]
        )

    def _cells(self, option: Option, *, money: bool) -> list[str]:
        report, latency = option.report, option.report.latency
        star = "*" if option is self.best else " "
        spent = option.cost_per_call if money else option.tokens_per_call
        times = ["—" if time is None else format_seconds(time) for time in (latency.p50, latency.p95, latency.p99)]
        return [
            f"{star} {option.depth}×{option.breadth}",
            "—" if report.validity_rate is None else format_share(report.validity_rate),
            *times,
            f"{option.requests_per_call:.2f}",
            f"{spent:.4g}",
            option.judgement.verdict,
        ]

    def __str__(self) -> str:
        best = self.best
        if best is None:
            closest = max(self.options, key=lambda option: (option.report.good or 0, -option.price[0]))
            why = "; ".join(closest.judgement.reasons)
            return f"no depth × breadth meets the SLO at {self.rate:g} per second; the closest, {closest}: {why}"
        report = best.report
        parts = [f"{best}: {format_share(report.validity_rate or 0.0)} valid"]
        if report.latency.p95 is not None:
            parts.append(f"p95 {format_seconds(report.latency.p95)}")
        parts.append(f"{best.requests_per_call:.3g} requests a call")
        if best.cost_per_valid is not None and self.cost_per_hour is not None:
            spent = f"{best.cost_per_call:.4g} a call, {best.cost_per_valid:.4g} a valid answer"
            parts.append(f"{spent}, {self.cost_per_hour:.4g} an hour")
        return ", ".join(parts)

    # Files.

    def to_json(self) -> str:
        """Return the plan as JSON for `from_json`."""
        found: dict[str, Any] = {
            "schema": self.schema,
            "server": self.server.to_dict(),
            "rate": self.rate,
            "slo": self.slo.to_dict(),
            "price": None if self.price is None else attrs.asdict(self.price),
            "best": None if self.best is None else {"depth": self.best.depth, "breadth": self.best.breadth},
            "options": [
                {
                    "depth": option.depth,
                    "breadth": option.breadth,
                    **attrs.asdict(option.judgement),
                    "report": option.report.to_dict(),
                }
                for option in self.options
            ],
        }
        return json.dumps(found, allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """Read a plan from JSON."""
        return cls.from_dict(loads(text))

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "Plan":
        """Rebuild a plan from parsed JSON."""
        values = {
            "server": ServerModel.from_dict(found["server"]),
            "rate": found["rate"],
            "slo": Slo.from_dict(found["slo"]),
            "price": None if found["price"] is None else Price(**found["price"]),
            "options": tuple(_option(option) for option in found["options"]),
        }
        return build(cls, values)


def _option(found: Mapping[str, Any]) -> Option:
    judged = {name: found[name] for name in ("verdict", "edge", "confidence")}
    judgement = build(Judgement, {**judged, "reasons": tuple(found["reasons"])})
    size = {name: found[name] for name in ("depth", "breadth")}
    return build(Option, {**size, "judgement": judgement, "report": LoadReport.from_dict(found["report"])})


def plan(  # noqa: PLR0913 - independent settings, and nearly all have a default
    server: ServerModel,
    *,
    rate: float,
    slo: Slo,
    price: Price | None = None,
    depths: Iterable[int] = (1, 2, 3, 4),
    breadths: Iterable[int] = (1, 2, 3, 4),
    requests: int = 1_000,
    seed: int = 0,
    on_option: Callable[[Option], object] = lambda _: None,
) -> Plan:
    """
    Find the cheapest depth × breadth that meets an SLO.

    Depth takes time, and breadth takes slots. On a nearly full server, breadth delays all calls.
    So each pair is simulated with its queue, instead of computed from the pass rate alone.

    Args:
        server: A server model, from `calibrate` or assumed. Its `pass_probability` is that of one attempt.

        rate: Calls per second, with random (Poisson) arrivals.

        slo: The limits to meet, such as `Slo(p95_s=4, validity_rate=0.95)`.

        price: The price of tokens. Without it, the option with the fewest tokens is best.

        depths: Depths to try (sequential attempts).

        breadths: Breadths to try (parallel subsamples).

        requests: Number of simulated calls per pair.

        seed: The same seed gives the same plan. All pairs get the same arrivals.

        on_option: Called with each option after it is judged.
    """
    check_instance("server", server, ServerModel, "a ServerModel")
    check_number("rate", rate, above=0)
    check_instance("slo", slo, Slo, "a Slo")
    # A simulated server never fails, so a limit on errors alone can't tell the options apart.
    if attrs.evolve(slo, error_rate=None).is_empty:
        raise ValueError("slo needs at least one limit, such as Slo(p95_s=4, validity_rate=0.95)")
    check_int("requests", requests, least=100)
    pairs = [(depth, breadth) for depth in depths for breadth in breadths]
    if not pairs:
        raise ValueError("depths and breadths must not be empty")
    # Queued calls are part of the result, so none is dropped and the drain has no limit.
    profile = OpenLoop(
        rate=rate,
        requests=requests,
        arrivals="poisson",
        warmup_s=min(requests / rate / 10, 60.0),
        max_in_flight=1_000_000,
        drain_s=None,
    )
    options: list[Option] = []
    for depth, breadth in pairs:
        report = simulate(server, profile, depth=depth, breadth=breadth, price=price or _NO_PRICE, seed=seed, slo=slo)
        kept = attrs.evolve(report, samples=None)
        option = Option(depth=depth, breadth=breadth, judgement=_judge(report, slo), report=kept)
        options.append(option)
        on_option(option)
    return Plan(server=server, rate=rate, slo=slo, price=price, options=tuple(options))


def _judge(report: LoadReport, slo: Slo) -> Judgement:
    """Return the verdict on an option. Calls without a single valid answer are never recommended."""
    if report.valid:
        return judge(report, slo)
    found = judge(report, slo)
    return Judgement("TRIP", (*(found.reasons if found.verdict == "TRIP" else ()), "no answer was valid"))
