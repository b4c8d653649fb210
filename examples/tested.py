"""Test a strategy in virtual time and under seeded schedules."""

import logging

import anyio
import structlog

from sampling import MultiTurnStrategy, RateLimited, Request
from sampling.testing import After, Outcome, ScriptedBackend, Watch, World, cancel_at_every_step, explore, run_virtual


async def scenario(world: World) -> None:
    """Make one call, with latencies, wrong answers and errors drawn from the seed."""

    def reply(_request: Request) -> After:
        answer = world.rng.choice(["Rhine", "rhine", "", ""])
        return After(world.latency(), answer or RateLimited())

    await anyio.sleep(world.latency())
    watch = Watch(ScriptedBackend(reply))
    strategy = MultiTurnStrategy(loop_budget=2, concurrency_budget=3)
    try:
        result = await watch.sample(strategy, "A river.", None, [str.istitle])
        world.reached("success" if result.success else "failure")
    except RateLimited:
        world.reached("nothing came back")
    finally:
        watch.check()


def nothing_is_left(_world: World, outcome: Outcome[None]) -> None:
    """Raise if a task outlived the call."""
    if outcome.left_running:
        raise AssertionError(f"left running: {outcome.left_running}")


async def an_hour() -> float:
    """Make a call that takes an hour."""
    result = await MultiTurnStrategy().sample("A river.", None, ScriptedBackend([After(3_600, "Rhine")]))
    return result.elapsed_s


def main() -> None:
    """Run the checks that a test would run, and print a summary."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    print(f"{run_virtual(an_hour):.0f} s of virtual time")
    print(explore(scenario, seeds=range(100), must_reach=["success", "failure", "nothing came back"]))
    print(f"cancelled at {len(cancel_at_every_step(scenario, check=nothing_is_left))} points")


if __name__ == "__main__":
    main()
