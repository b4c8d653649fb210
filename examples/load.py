"""Find the capacity of a server in virtual time."""

from functools import partial

from sampling import RejectionSamplingStrategy
from sampling.backends.simulated import SimulatedBackend
from sampling.load import OpenLoop, Slo, find_capacity, run_load, strategy_workload
from sampling.testing import run_virtual

SLO = Slo(p95_s=2.5, error_rate=0.001, validity_rate=0.9)


def main() -> None:
    """Find the highest rate that meets the SLO, and try it."""
    backend = SimulatedBackend(
        seed=7,
        slots=4,
        time_to_first_token_s=0.2,
        time_per_token_s=0.02,
        output_tokens=41,
        tokens_per_piece=40,
        pass_probability=0.97,
    )
    workload = strategy_workload(RejectionSamplingStrategy(), ["Name a river."], None, backend, backend.requirements)
    search = partial(find_capacity, workload, "1,2,4,8", SLO, arrivals="poisson", hold_s=120, seed=7)
    answer = run_virtual(search)
    print(answer.render())

    if answer.max_rate is not None:
        profile = OpenLoop(rate=answer.max_rate, duration_s=1800, arrivals="poisson")
        report = run_virtual(partial(run_load, workload, profile, slo=SLO, seed=7))
        print(f"\nhalf an hour at that rate: {report}")


if __name__ == "__main__":
    main()
