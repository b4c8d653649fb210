"""Log the ids of a call on every line."""

import anyio
import structlog

from sampling import MultiTurnStrategy, Request
from sampling.telemetry import logging_hooks

log = structlog.get_logger("my_backend")


async def ask(request: Request) -> str:
    """Stand in for a model whose client logs."""
    await anyio.sleep(0.01 * (1 + request.subsample))
    log.info("answering", words=2)
    return "Rhine, Danube" if request.attempt else "rhine"


def names_two(text: str) -> bool:
    """Two rivers."""
    return "," in text


async def main() -> None:
    """Log one call as JSON."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.JSONRenderer(),
        ]
    )
    strategy = MultiTurnStrategy(loop_budget=2, concurrency_budget=2, hooks=logging_hooks())
    await strategy.sample("Name two rivers.", None, ask, [names_two])


if __name__ == "__main__":
    anyio.run(main)
