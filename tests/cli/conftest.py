"""What the tests of the command line share."""

import signal

import pytest


@pytest.fixture
def default_hangup():
    """SIGHUP ends programs that are started here, also if it is ignored where the tests run, as under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
