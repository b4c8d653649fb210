"""
Record the metrics of a load run in progress with OpenTelemetry.

    async with otel_load(run):
        report = await run.run()
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from sampling._arguments import check_number
from sampling.errors import MissingExtra
from sampling.load import LoadRun, PopulationsRun, Tally
from sampling.telemetry._load_figures import BUCKETS_S, COUNTS, LoadFigures

try:
    from opentelemetry.metrics import MeterProvider

    from sampling.telemetry._otel_metrics import histogram, meter_named
except ImportError as _error:
    raise MissingExtra("metrics", "opentelemetry-api", "otel") from _error

__all__ = ["otel_load"]


@asynccontextmanager
async def otel_load(
    run: LoadRun | PopulationsRun, meter_provider: MeterProvider | None = None, *, every_s: float = 1.0
) -> AsyncGenerator[None]:
    """
    Record the metrics of a load run while the block runs.

    The metrics are `sampling.load.scheduled`, `.admitted`, `.dropped`, `.succeeded`, `.failed`, `.cancelled`,
    `.in_flight`, `.latency` and `.schedule_lag`, with the attributes `population` and `model`.

    Args:
        run: The run, which may already have started.

        meter_provider: The provider of the meter. None means the global one of the application.

        every_s: The interval in seconds. They are recorded once more at the end of the block.
    """
    check_number("every_s", every_s, above=0)
    recorder = _Recorder(LoadFigures(run), meter_provider)
    async with anyio.create_task_group() as group:
        group.start_soon(recorder.record_every, every_s)
        try:
            yield
        finally:
            group.cancel_scope.cancel()
            recorder.record()


class _Recorder:
    """The instruments of a load run."""

    def __init__(self, figures: LoadFigures, provider: MeterProvider | None) -> None:
        self._figures = figures
        self._recorded: dict[str, Tally] = {}
        meter = meter_named("sampling.load", provider)
        self._counters = {
            name: meter.create_counter(f"sampling.load.{name}", "1", description)
            for name, description in COUNTS.items()
        }
        self._in_flight = meter.create_up_down_counter("sampling.load.in_flight", "1", "Requests in flight.")
        self._latency = histogram(
            meter, "sampling.load.latency", "Time from when a request was due to its answer.", buckets=BUCKETS_S
        )
        self._lag = histogram(
            meter,
            "sampling.load.schedule_lag",
            "Delay of requests that the load generator caused.",
            buckets=BUCKETS_S,
        )

    async def record_every(self, every_s: float) -> None:
        while True:
            self.record()
            await anyio.sleep(every_s)

    def record(self) -> None:
        """Record what has changed since the last time."""
        for each in self._figures.read():
            labels = {"population": each.population, "model": each.model}
            before = self._recorded.get(each.population, Tally())
            self._recorded[each.population] = each.tally
            for name, counter in self._counters.items():
                counter.add(getattr(each.tally, name) - getattr(before, name), labels)
            self._in_flight.add(each.tally.in_flight - before.in_flight, labels)
            for value in each.latencies:
                self._latency.record(value, labels)
            for value in each.lags:
                self._lag.record(value, labels)
