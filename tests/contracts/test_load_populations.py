"""C8: several populations in one run."""

import csv
from contextlib import asynccontextmanager

import anyio
import attrs
import pytest

from sampling.load import (
    Answered,
    Arrival,
    ClosedLoop,
    ImportedWorkload,
    LoadReport,
    OpenLoop,
    Population,
    PopulationsReport,
    PopulationsRun,
    Slo,
    compare,
    load_table,
    mix,
    read_report,
    render_html,
    run_load,
    run_populations,
    write_report,
)
from sampling.load.model._seeds import derive_seed
from tests.load.seeded import LOOPS, run_seeded


async def fast(arrival: Arrival) -> Answered:
    await anyio.sleep(0.05 + 0.01 * arrival.rng.random())
    return Answered(input_tokens=3, output_tokens=7, cost=0.5)


async def slow(arrival: Arrival) -> None:
    await anyio.sleep(2.0)


async def broken(arrival: Arrival) -> None:
    raise OSError("no")


def recorded(report: LoadReport) -> dict[str, bytes]:
    """Return every request as bytes, because NaN is not equal to itself."""
    return {name: column.tobytes() for name, column in report.samples.columns.items()}


BATCH = Population(name="batch", workload=fast, profile=OpenLoop(rate=10, duration_s=20), slo=Slo(p95_s=1.0))
CHAT = Population(name="chat", workload=slow, profile=ClosedLoop(users=4, think_time_s=1.0, horizon_s=20))


def test_each_population_is_reported_by_itself_and_in_total(run):
    """C8: with its own traffic, workload and limits."""
    report = run(run_populations, [BATCH, CHAT])
    batch, chat = report.populations["batch"], report.populations["chat"]
    assert ("open", "closed", 200) == (batch.model, chat.model, batch.admitted)
    assert (0.055, 2.0) == (pytest.approx(batch.latency.p50, abs=0.005), pytest.approx(chat.latency.p50))
    assert ("PASS", None, "PASS") == (batch.verdict, chat.verdict, report.verdict)
    total = report.total
    assert total.admitted == batch.admitted + chat.admitted == total.succeeded
    assert (1400, 100.0, 20.0) == (total.output_tokens, total.cost, total.duration_s)
    assert total.achieved_rate == pytest.approx(total.admitted / 20)
    assert total.good is None


def test_the_worst_verdict_is_that_of_the_run(run):
    """C8: with the reasons of each population, by name."""
    bad = attrs.evolve(BATCH, name="bad", workload=broken)
    report = run(run_populations, [BATCH, bad])
    assert ("PASS", "TRIP", "TRIP") == (
        report.populations["batch"].verdict, report.populations["bad"].verdict, report.verdict,
    )  # fmt: skip
    assert any(reason.startswith("bad: error rate=") for reason in report.reasons)
    assert (200, 0.5) == (report.total.good, report.total.error_rate)
    few = attrs.evolve(BATCH, name="few", profile=OpenLoop(rate=1, duration_s=3))
    assert "INCONCLUSIVE" == run(run_populations, [BATCH, few]).verdict


@pytest.mark.parametrize("loop", LOOPS)
def test_the_seeds_of_one_population_do_not_depend_on_the_others(loop):
    """C8: its traffic is the same alone, with another and in another order, and two runs are byte-identical."""
    poisson = attrs.evolve(BATCH, profile=OpenLoop(rate=10, duration_s=20, arrivals="poisson"))
    alone = run_seeded(loop, run_populations, [poisson], seed=7).populations["batch"]
    both = run_seeded(loop, run_populations, [CHAT, poisson], seed=7)
    again = run_seeded(loop, run_populations, [CHAT, poisson], seed=7)
    assert recorded(alone) == recorded(both.populations["batch"])
    assert both.to_json(samples=True) == again.to_json(samples=True)
    other = attrs.evolve(poisson, name="other")
    twins = run_seeded(loop, run_populations, [poisson, other], seed=7).populations
    assert twins["batch"].samples.columns["intended_s"] != twins["other"].samples.columns["intended_s"]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_rate_driven_run_is_unchanged_by_closed_loops(loop):
    """C9: the population sends what a run of its own sends."""
    together = run_seeded(loop, run_populations, [BATCH, CHAT], seed=7).populations["batch"]
    own = run_seeded(loop, run_load, fast, BATCH.profile, seed=derive_seed(7, "population", "batch"), slo=BATCH.slo)
    assert recorded(own) == recorded(together)


@asynccontextmanager
async def opened_after(seconds: float):
    """A workload that takes a while to open, and sends the clock of each arrival."""
    await anyio.sleep(seconds)

    async def send(arrival: Arrival) -> Answered:
        return Answered(requests=round(anyio.current_time()))

    yield send


def test_all_populations_start_together(run):
    """C8: when the last of them has opened its workload."""
    populations = [
        Population(
            name=f"after {seconds}",
            workload=ImportedWorkload("tests.contracts.test_load_populations:opened_after", {"seconds": seconds}),
            profile=OpenLoop(rate=1, duration_s=2),
        )
        for seconds in (0, 5)
    ]
    report = run(run_populations, populations)
    assert [[5, 6]] * 2 == [list(each.samples.columns["requests"]) for each in report.populations.values()]


def test_a_run_can_be_stopped_with_all_that_was_gathered(run):
    """C8, O5: nothing is uncounted in any population."""

    async def stop_after(seconds: float) -> PopulationsReport:
        load = PopulationsRun([BATCH, CHAT])
        async with anyio.create_task_group() as group:
            group.start_soon(later, load, seconds)
            report = await load.run()
        assert load.progress.in_flight == 0
        return report

    async def later(load: PopulationsRun, seconds: float) -> None:
        await anyio.sleep(seconds)
        assert load.progress.admitted
        load.stop()

    report = run(stop_after, 5.01)
    assert report.interrupted
    assert "INCONCLUSIVE" == report.verdict
    assert 51 == report.populations["batch"].scheduled
    assert 4 == sum(report.populations["chat"].user_ends.values())


def test_a_workload_that_can_not_be_opened_ends_the_run_with_its_error(run):
    """C8: as it is, not in an exception group."""
    missing = attrs.evolve(CHAT, workload=ImportedWorkload("tests.contracts.test_load_populations:nothing"))
    with pytest.raises(ValueError, match="nothing"):
        run(run_populations, [BATCH, missing])


@pytest.mark.parametrize(
    ("populations", "says"),
    [
        ([], "at least one population"),
        ([BATCH, BATCH], "two populations are named 'batch'"),
    ],
)
def test_populations_without_a_name_of_their_own_are_an_error(populations, says):
    """C8: populations without a name of their own are an error."""
    with pytest.raises(ValueError, match=says):
        PopulationsRun(populations)


def test_a_population_has_a_name_and_a_profile():
    """C8: a population has a name and a profile."""
    with pytest.raises(ValueError, match="the name of a population"):
        Population(name="", workload=fast, profile=BATCH.profile)
    with pytest.raises(ValueError, match=r"the name of a population must not have control characters, got 'a\\x1b'"):
        Population(name="a\x1b", workload=fast, profile=BATCH.profile)
    with pytest.raises(TypeError, match=r"population 'x' must be an OpenLoop or a ClosedLoop"):
        Population(name="x", workload=fast, profile=10)


def test_a_report_of_populations_is_shown_written_read_and_compared(run, tmp_path):
    """C8, R14: as text, page, CSV and JSON, each population and the total."""
    mixed = mix({"ask": (1, fast), "search": (1, fast)})
    report = run(run_populations, [attrs.evolve(BATCH, workload=mixed), CHAT], seed=3)
    table = load_table(report)
    assert ["batch", "chat", "total"] == [line.split()[0] for line in table.splitlines()[1:4]]
    assert "ask: latency" in table
    page = render_html(report)
    for text in ("<h2>batch</h2>", "<h2>chat</h2>", "2 populations, ", "4 users, each waiting"):
        assert text in page
    path = tmp_path / "run.json"
    write_report(report, path)
    again = read_report(path)
    assert isinstance(again, PopulationsReport)
    assert report.to_json() == again.to_json()
    write_report(report, tmp_path / "run.csv")
    rows = list(csv.DictReader((tmp_path / "run.csv").read_text().splitlines()))
    assert [("batch", "open"), ("chat", "closed")] == [(row["population"], row["model"]) for row in rows]
    assert not compare(report, again).worse
    alone = run(run_populations, [CHAT], seed=3)
    assert "population 'batch' is only in the one before" in compare(report, alone).remarks
    with pytest.raises(ValueError, match="can't compare a run of several populations with a load run"):
        compare(report, report.populations["chat"])
