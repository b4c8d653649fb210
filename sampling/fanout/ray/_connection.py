"""
The connection of this process to Ray.

A process has at most one, so all engines share it, and the last one closes it.
"""

import os
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from sampling._log import Logger
from sampling.errors import ConnectFailed, MissingExtra

try:
    import ray as _ray
except ImportError as error:
    raise MissingExtra("the cluster", "ray", "ray") from error

__all__ = ["Connection", "shared_connection"]

ray: Any = _ray
"""Untyped, because Ray's types are incomplete."""

log = Logger()

_CONNECT_TIMEOUT_S: Final = 10.0

_HOW_TO_CONNECT = (
    "Check that the address is that of the head of a cluster, and RAY_AUTH_MODE and RAY_AUTH_TOKEN, which Ray reads "
    "when it is imported."
)

_TOKEN_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


class Connection:
    """
    Connects to Ray for its first user, and disconnects after the last one.

    A Ray that the program started itself is used and left running.
    Its methods block, and may be called in any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._keeper: _Keeper | None = None
        self._directory: str | None = None

    def acquire(self, address: str | None, workers: int, options: Mapping[str, Any]) -> bool:
        """Connect, or use the existing connection. Return whether `release` must be called."""
        with self._lock:
            if self._keeper is None and not ray.is_initialized():
                keeper = _Keeper(lambda: self._start(address, workers, options), self._stop)
                keeper.start()
                self._keeper = keeper
            else:
                _warn_if_elsewhere(address)
            self._users += self._keeper is not None
            return self._keeper is not None

    def release(self) -> None:
        """Disconnect if there is no other user."""
        with self._lock:
            self._users -= 1
            if not self._users and self._keeper is not None:
                keeper, self._keeper = self._keeper, None
                keeper.stop()

    def _start(self, address: str | None, workers: int, options: Mapping[str, Any]) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        chosen = {"logging_level": "ERROR", "log_to_driver": False, **options}
        if address == "local":
            chosen = {"num_cpus": workers, "include_dashboard": False, **chosen}
            self._isolate(chosen)
        _check_reachable(address)
        _print_messages_of_ray(enabled=bool(chosen["log_to_driver"]))
        try:
            ray.init(address=address, **chosen)
        except ConnectionError as error:
            raise ConnectFailed(f"can't connect to Ray at {address}: {error}", hint=_HOW_TO_CONNECT) from error

    def _isolate(self, options: dict[str, Any]) -> None:
        """
        Use a temporary token and directory for our Ray.

        Values that the user has set are kept.
        """
        token_file = Path.home() / ".ray" / "auth_token"
        if not any(os.environ.get(name) for name in _TOKEN_VARIABLES) and not token_file.exists():
            # Ray listens on all interfaces, so it needs a token. By default it would create one in the user's home.
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        if "_temp_dir" not in options and "RAY_TMPDIR" not in os.environ:
            # Short, because paths of sockets are limited and the user's TMPDIR may be too long.
            short = "/tmp" if Path("/tmp").is_dir() else None  # noqa: S108 - mkdtemp creates a private directory
            self._directory = tempfile.mkdtemp(prefix="ray-", dir=short)
            # A subdirectory, because Ray makes its directory readable and writable by everyone.
            options["_temp_dir"] = str(Path(self._directory, "r"))

    def _stop(self) -> None:
        ray.shutdown()
        _print_messages_of_ray(enabled=True)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


shared_connection = Connection()
"""The connection of this process."""


class _Keeper:
    """A thread that starts and stops Ray, and waits in between: the processes of Ray end with their thread."""

    def __init__(self, start: Callable[[], None], stop: Callable[[], None]) -> None:
        self._start = start
        self._stop = stop
        self._started: Future[None] = Future()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="sampling-ray-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()
        try:
            self._started.result()
        except BaseException:
            self._thread.join()
            raise

    def stop(self) -> None:
        self._ending.set()
        self._thread.join()

    def _keep(self) -> None:
        try:
            self._start()
        except BaseException as error:  # noqa: BLE001, ASYNC103 - raised where the start is waited for
            self._started.set_exception(error)
        else:
            self._started.set_result(None)
            self._ending.wait()
        self._stop()


def _check_reachable(address: str) -> None:
    """Raise if nobody listens at an address. Ray would try again for a quarter of an hour, and can't be interrupted."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise ConnectFailed(
            f"no Ray cluster answers at {address}: {error}",
            hint="Check the address, that the cluster is running, and the network.",
        ) from error


def _print_messages_of_ray(*, enabled: bool) -> None:
    """
    Let Ray print what its processes report, or not.

    It prints to stdout, where the answers of a program may be. `log_to_driver` turns off only a part of it, and
    there is no public setting for the rest.
    """
    ray._private.worker._worker_logs_enabled = enabled


def _warn_if_elsewhere(address: str | None) -> None:
    """Warn if an address was given, and this process is connected to another one."""
    if address is None or address in {"auto", "local"} or address.startswith("ray://"):
        return
    connected_to = ray.get_runtime_context().gcs_address
    if connected_to != address:
        log.warning("ray_already_connected", address=address, connected_to=connected_to)
