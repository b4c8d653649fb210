"""All that is said to Ray: starting it, its actors, and what comes back from them."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio

from sampling.errors import MissingExtra
from sampling.fanout.ray._thread import BridgeThread
from sampling.fanout.ray._worker import Worker

try:
    import ray as _ray
    from ray.exceptions import RayError, RayTaskError
except ImportError as error:
    raise MissingExtra("the cluster", "ray", "ray") from error

__all__ = ["Actor", "Cluster", "Lost"]

T = TypeVar("T")

ray: Any = _ray
"""Untyped, for its types say less than they cost."""

TOKEN_SOURCES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


class Lost(Exception):
    """The process of an actor is gone, or can't be reached; what it was doing may or may not have been done."""


class Actor:
    """One process with a `Worker` in it."""

    def __init__(self, handle: Any, shared: Any, thread: BridgeThread) -> None:
        self._handle = handle
        self._thread = thread
        self._serving = self.submit("serve", shared)

    def submit(self, method: str, *args: Any) -> "Future[Any]":
        """Have a method of the worker called; the future has what comes of it."""
        future: Future[Any] = getattr(self._handle, method).remote(*args).future()
        return future

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of the worker."""
        return await self.result_of(self.submit(method, *args))

    async def result_of(self, future: "Future[T]") -> T:
        """Wait for what was submitted; what the method raised is raised, and `Lost` if the process is gone."""
        try:
            return await self._thread.wait(future)
        except RayTaskError as error:
            raise error.cause from None
        except RayError as error:
            raise Lost(str(error)) from error

    async def close(self) -> None:
        """Have the worker close what it holds; returns when it has, or is gone."""
        self.submit("close")
        await self.result_of(self._serving)

    async def kill(self) -> None:
        """End the process; returns when that is on its way."""
        await self._thread.run(ray.kill, self._handle)

    def kill_soon(self) -> None:
        """End the process, without waiting for it."""
        self._thread.run_soon(ray.kill, self._handle)


class Cluster:
    """Ray, started or connected to on first use, and let go of after the last; if it is another's, left as it is."""

    def __init__(self, address: str | None, workers: int, options: Mapping[str, Any]) -> None:
        self.address = address
        self._workers = workers
        self._options = options
        self._users = 0
        self._lock = anyio.Lock()
        self._thread: BridgeThread | None = None
        self._is_ours = False
        self._directory: str | None = None

    @property
    def thread(self) -> BridgeThread:
        """The thread between Ray and the event loop."""
        if self._thread is None:
            raise RuntimeError("this cluster is not in use")
        return self._thread

    async def __aenter__(self) -> Self:
        async with self._lock:
            if not self._users:
                await self._connect()
            self._users += 1
        return self

    async def _connect(self) -> None:
        thread = await BridgeThread("sampling-ray").__aenter__()
        try:
            await thread.run(self._start)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await thread.run(self._stop)
                await thread.__aexit__(None, None, None)
            raise
        self._thread = thread

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            async with self._lock:
                self._users -= 1
                if not self._users:
                    thread, self._thread = self.thread, None
                    await thread.run(self._stop)
                    await thread.__aexit__(None, None, None)

    def _start(self) -> None:
        if ray.is_initialized():
            return
        self._is_ours = True
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        address = self.address or os.environ.get("RAY_ADDRESS") or "local"
        options = {"logging_level": "ERROR", "log_to_driver": False, **self._options}
        if address == "local":
            options = {"num_cpus": self._workers, "include_dashboard": False, **options}
            self._keep_out_of_home(options)
        ray.init(address=address, **options)

    def _keep_out_of_home(self, options: dict[str, Any]) -> None:
        """Give a Ray of our own a token and a directory that are not the user's, unless the user has set them."""
        token_file = Path.home() / ".ray" / "auth_token"
        if not any(os.environ.get(name) for name in TOKEN_SOURCES) and not token_file.exists():
            # Ray listens on all interfaces, so it needs one. It would make one for us, in the user's home.
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        if "_temp_dir" not in options and "RAY_TMPDIR" not in os.environ:
            # Short, for paths of sockets are: a user's own TMPDIR may be too long already.
            short = "/tmp" if Path("/tmp").is_dir() else None  # noqa: S108 - mkdtemp makes one nobody else can read
            self._directory = tempfile.mkdtemp(prefix="ray-", dir=short)
            # Inside of it, for Ray lets everyone read and write what it is given.
            options["_temp_dir"] = str(Path(self._directory, "r"))

    def _stop(self) -> None:
        if self._is_ours:
            ray.shutdown()
            self._is_ours = False
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    async def share(self, packed: bytes) -> Any:
        """Put what all actors need where each of them can get it."""
        return await self.thread.run(ray.put, packed)

    def new_actor(self, shared: Any, *, most_calls: int, options: Mapping[str, Any]) -> Actor:
        """Start one more process; calls wait until it is up."""
        kind = ray.remote(Worker)
        # Ray must not run anything twice of its own accord: what runs again is the engine's to decide.
        own = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": most_calls}
        handle = kind.options(**{"num_cpus": 0, **options, **own}).remote()
        return Actor(handle, shared, self.thread)
