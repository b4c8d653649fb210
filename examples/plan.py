"""Plan depth, breadth and cost, with a simulation that takes a second."""

from sampling import Price
from sampling.load import ServerModel, Slo, plan


def main() -> None:
    """Plan for a server with 16 slots and a pass rate of 60 %."""
    server = ServerModel(
        slots=16,
        time_to_first_token_s=0.3,
        time_per_token_s=0.02,
        output_tokens=(50, 100, 150),
        input_tokens=400,
        pass_probability=0.6,
    )
    price = Price(input_per_million=0.25, output_per_million=2.0)
    slo = Slo(p95_s=6.0, validity_rate=0.95)
    print(plan(server, rate=2, slo=slo, price=price, depths=(1, 2, 3, 4), breadths=(1, 2), requests=500).render())


if __name__ == "__main__":
    main()
