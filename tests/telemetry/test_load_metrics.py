"""Figures of a load run while it goes on, for Prometheus and OpenTelemetry."""

import anyio
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sampling.load import Arrival, ClosedLoop, LoadRun, OpenLoop, Population, PopulationsRun
from sampling.telemetry.otel_load import otel_load
from sampling.telemetry.prometheus import prometheus_load


async def half_a_second(arrival: Arrival) -> None:
    # A little less, because an answer and an arrival at the same instant have no order on trio.
    await anyio.sleep(0.47)
    if arrival.index % 5 == 3:
        raise OSError("no")


def scrape(registry: CollectorRegistry) -> dict[tuple[str, str, str], float]:
    """Return the samples of a scrape, by name, population and bound of a bucket."""
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name, sample.labels["population"], sample.labels.get("le", "")): sample.value
        for family in families
        for sample in family.samples
    }


def populations() -> PopulationsRun:
    return PopulationsRun(
        [
            Population(name="chat", workload=half_a_second, profile=ClosedLoop(users=2, horizon_s=10)),
            Population(name="batch", workload=half_a_second, profile=OpenLoop(rate=10, duration_s=10, max_in_flight=4)),
        ]
    )


def test_prometheus_sees_the_figures_while_the_run_goes_on(run):
    """Point by point as they are recorded, and as many at the end as the report has."""

    async def watch():
        load, registry = populations(), CollectorRegistry()
        seen = []
        with prometheus_load(load, registry):
            async with anyio.create_task_group() as group:
                group.start_soon(scrape_at, registry, 4.95, seen)
                report = await load.run()
            seen.append(scrape(registry))
        assert b"" == generate_latest(registry)
        return seen, report

    async def scrape_at(registry, at_s, seen):
        await anyio.sleep(at_s)
        seen.append(scrape(registry))

    (during, after), report = run(watch)
    batch = report.populations["batch"]
    assert 50 == during["sampling_load_scheduled_total", "batch", ""]
    assert 4 == during["sampling_load_in_flight", "batch", ""]
    assert 2 == during["sampling_load_in_flight", "chat", ""]
    assert 0 < during["sampling_load_latency_seconds_count", "batch", ""] < batch.succeeded
    for name in ("scheduled", "admitted", "dropped", "succeeded", "failed", "cancelled"):
        assert getattr(batch, name) == after[f"sampling_load_{name}_total", "batch", ""]
    assert batch.succeeded == after["sampling_load_latency_seconds_count", "batch", ""]
    assert batch.admitted == after["sampling_load_schedule_lag_seconds_count", "batch", ""]
    assert 0 == after["sampling_load_latency_seconds_bucket", "batch", "0.25"]
    assert batch.succeeded == after["sampling_load_latency_seconds_bucket", "batch", "1.0"]
    assert batch.latency.mean * batch.succeeded == pytest.approx(
        after["sampling_load_latency_seconds_sum", "batch", ""]
    )


def test_a_run_without_populations_has_one_without_a_name(run):
    """Without populations the label is empty, and a scrape does not repeat latencies."""

    async def watch():
        load, registry = LoadRun(half_a_second, OpenLoop(rate=10, requests=20)), CollectorRegistry()
        with prometheus_load(load, registry):
            report = await load.run()
            return report, scrape(registry), scrape(registry)

    report, first, second = run(watch)
    assert report.succeeded == first["sampling_load_latency_seconds_count", "", ""]
    assert first == second


def test_opentelemetry_records_the_figures_while_the_run_goes_on(run):
    """Every second, and once more at the end."""

    async def watch():
        reader = InMemoryMetricReader()
        provider = MeterProvider([reader])
        load, seen = populations(), []
        async with anyio.create_task_group() as group:
            group.start_soon(read_at, reader, 5.2, seen)
            async with otel_load(load, provider):
                report = await load.run()
        seen.append(points(reader))
        provider.shutdown()
        return seen, report

    async def read_at(reader, at_s, seen):
        await anyio.sleep(at_s)
        seen.append(points(reader))

    (during, after), report = run(watch)
    batch = report.populations["batch"]
    assert 0 < during["sampling.load.scheduled", "batch"].value < batch.scheduled
    for name in ("scheduled", "admitted", "dropped", "succeeded", "failed", "cancelled"):
        assert getattr(batch, name) == after[f"sampling.load.{name}", "batch"].value
    assert 0 == after["sampling.load.in_flight", "batch"].value
    assert batch.succeeded == after["sampling.load.latency", "batch"].count
    assert batch.latency.mean * batch.succeeded == pytest.approx(after["sampling.load.latency", "batch"].sum)
    assert report.populations["chat"].succeeded == after["sampling.load.latency", "chat"].count


def points(reader: InMemoryMetricReader):
    data = reader.get_metrics_data()
    return {
        (metric.name, point.attributes["population"]): point
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def test_only_load_runs_can_be_watched():
    """Anything else is refused before a metric is registered."""
    with pytest.raises(TypeError, match="run must be a LoadRun or a PopulationsRun"), prometheus_load(7):
        pass
