"""One Ray for all tests here, in however many processes they run."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

# Ray replaces `builtins.print` for the whole process otherwise, and other tests of this worker would see it.
os.environ["RAY_TQDM_PATCH_PRINT"] = "0"

HOLDER = Path(__file__).with_name("ray_holder.py")


@pytest.fixture(scope="session")
def ray_cluster():
    """The address of a Ray that runs, and that this process is connected to."""
    ray = pytest.importorskip("ray")
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"{os.getpid()}-{time.time_ns()}")
    # Not in pytest's own directory: the paths of Ray's sockets would be too long.
    directory = Path(tempfile.gettempdir(), f"sampling-ray-{run[:12]}")
    users = directory / "users"
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        first = False
    else:
        first = True
    users.mkdir(exist_ok=True)
    user = users / str(os.getpid())
    user.touch()
    holder = None
    if first:
        with (directory / "log").open("wb") as log:
            command = [sys.executable, str(HOLDER), str(directory)]
            holder = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: S603
    ready = _wait_for(directory / "ready.json", holder)
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": ready["token"], "RAY_USAGE_STATS_ENABLED": "0"}
    # Ray read the mode when it was imported, before there was a token.
    ray._raylet.Config.initialize("")
    ray.init(address=ready["address"], log_to_driver=False, logging_level="ERROR")
    yield ready["address"]
    ray.shutdown()
    user.unlink()
    if holder is not None:
        holder.wait()


def _wait_for(file: Path, holder: subprocess.Popen | None) -> dict:
    for _ in range(1_200):
        if file.exists():
            return json.loads(file.read_text())
        if holder is not None and holder.poll() is not None:
            break
        time.sleep(0.1)
    raise RuntimeError(f"Ray did not start: {(file.parent / 'log').read_text()}")


@pytest.fixture(params=["asyncio", "trio"])
def run_for_real(request: pytest.FixtureRequest) -> Callable:
    """`run_for_real(async_fn, *args)`: on each event loop, in real time, for other processes know no other."""

    def run_it(async_fn, *args):
        return anyio.run(async_fn, *args, backend=request.param)

    return run_it
