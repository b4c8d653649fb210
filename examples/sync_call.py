"""Sample from code without an event loop."""

from toy_model import REQUIREMENTS, ToyModel

from sampling import MultiTurnStrategy


def main() -> None:
    """Make a blocking call."""
    strategy = MultiTurnStrategy(loop_budget=5, concurrency_budget=2)
    result = strategy.sample_sync("Name three rivers.", None, ToyModel(seed=5, word_s=0.01), REQUIREMENTS)
    print(result)


if __name__ == "__main__":
    main()
