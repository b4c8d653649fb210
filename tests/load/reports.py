"""Reports for tests to look at: made in virtual time, once, and the same each time."""

from functools import cache, partial

from sampling.backends.simulated import SimulatedBackend, lognormal
from sampling.load import (
    CapacityAnswer,
    ClosedLoop,
    LoadReport,
    OpenLoop,
    Profile,
    Slo,
    find_capacity,
    mix,
    run_load,
    strategy_workload,
)
from sampling.strategies import RejectionSamplingStrategy
from sampling.testing import run_virtual

SLO = Slo.parse("p95=2s,p99=5s,error=10%,validity=60%")
EVIL = "<script>document.title='owned'</script>&\"'\u202e"


def workload(**settings):
    backend = SimulatedBackend(
        slots=4, time_to_first_token_s=0.15, time_per_token_s=0.01, output_tokens=lognormal(40, 0.4),
        pass_probability=0.8, tokens_per_piece=64, **settings,
    )  # fmt: skip
    return strategy_workload(RejectionSamplingStrategy(), ["one", "two"], None, backend, backend.requirements)


@cache
def load_report(profile: Profile | None = None, *, failures: float = 0.0) -> LoadReport:
    profile = profile or OpenLoop(rate=6, duration_s=30, arrivals="poisson", max_in_flight=12)
    return run_virtual(partial(run_load, workload(failures=failures), profile, seed=3, slo=SLO))


@cache
def closed_report() -> LoadReport:
    return load_report(ClosedLoop(users=4, requests=100))


@cache
def evil_report() -> LoadReport:
    """Every text that a run can put into its report is an attack."""

    async def fails(_arrival):
        raise type(EVIL, (Exception,), {})(EVIL)

    async def works(_arrival):
        return None

    operations = mix({EVIL: (1, works), "failing": (1, fails)})
    return run_virtual(partial(run_load, operations, OpenLoop(rate=10, requests=40), seed=1))


@cache
def capacity_answer(slots: int = 4) -> CapacityAnswer:
    search = partial(
        find_capacity, workload(), "2,4,6,8,12", SLO, warmup_s=5, hold_s=30, cooldown_s=1, stop_on_trip=False,
        arrivals="poisson", seed=slots,
    )  # fmt: skip
    return run_virtual(search)
