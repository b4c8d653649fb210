"""Fixtures for all tests: every async thing runs on asyncio and on trio, in virtual time where time matters."""

import signal
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import structlog
from hypothesis import HealthCheck, settings

from sampling.testing import run_virtual

# How long an example takes depends on how busy the machine is.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(autouse=True, scope="session")
def _ctrl_c_works() -> None:
    """Let Ctrl-C interrupt, as in a terminal: a shell starts what runs in the background with SIGINT ignored."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The event loop of tests that are async themselves."""
    return request.param


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Callable:
    """`run(async_fn, *args, **kwargs)`: in virtual time, on each event loop."""

    def run_it(async_fn, *args, **kwargs):
        return run_virtual(partial(async_fn, **kwargs), *args, loop=request.param)

    return run_it


@pytest.fixture
def no_logs() -> Iterator[None]:
    """Drop log lines: rendering those of a hundred thousand calls takes longer than the calls."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.configure(**before)
