"""A llama.cpp server in a separate process, on loopback."""

import json
import secrets
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Any, Self

import attrs

from sampling._arguments import check_int, check_number
from sampling._redaction import Secret
from sampling.backends.llama import _process
from sampling.backends.llama._model_files import GGUFModel, find_model
from sampling.errors import FatalError

__all__ = ["LlamaHost", "LlamaServer", "LlamaSettings", "load_error"]


def _new_key() -> Secret:
    return Secret(secrets.token_urlsafe(32))


@attrs.frozen
class LlamaSettings:
    """The model to load and its settings."""

    source: GGUFModel = attrs.field(default=None, converter=find_model, alias="model_path")
    slots: int = 8
    context_tokens: int = 4_096
    threads: int | None = None
    gpu_layers: int | None = None
    api_key: Secret = attrs.field(factory=_new_key, init=False)
    """Required, because every user and web page on this machine can reach the port."""

    def __attrs_post_init__(self) -> None:
        check_int("slots", self.slots, least=1)
        check_int("context_tokens", self.context_tokens, least=1)
        if self.threads is not None:
            check_int("threads", self.threads, least=1)
        if self.gpu_layers is not None:
            check_int("gpu_layers", self.gpu_layers, least=0)

    @property
    def model(self) -> str:
        """The name of the model: as it was given, or its file name without the extension."""
        return self.source.name

    @property
    def model_path(self) -> Path:
        """The GGUF file."""
        return self.source.path

    def for_process(self) -> dict[str, Any]:
        """Return the arguments of `load_server`, including the key."""
        return {
            "model_path": str(self.model_path),
            "model": self.model,
            "api_key": self.api_key.reveal(),
            "slots": self.slots,
            "context_tokens": self.context_tokens,
            "threads": self.source.threads if self.threads is None else self.threads,
            "gpu_layers": self.gpu_layers,
            "sampling": dict(self.source.sampling),
            "chat_template": self.source.chat_template,
        }


class LlamaHost(ABC):
    """A context manager that loads a model and unloads it at the end."""

    @abstractmethod
    def launch(self) -> None:
        """Start loading, without waiting for it."""

    @abstractmethod
    def wait_until_ready(self) -> None:
        """Block until the model is loaded, or raise `FatalError`."""

    @abstractmethod
    def stop(self) -> None:
        """Unload the model, or give up loading it."""

    def __enter__(self) -> Self:
        self.launch()
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


class LlamaServer(LlamaHost):
    """
    A llama.cpp server with the OpenAI API, on a free loopback port.

    It runs for the length of a `with` block, and ends with this process even if that is killed.
    In a separate process, a crash does not affect this one, and loading a model does not block an event loop.
    This class needs no event loop. In async code, use `LlamaBackend`.
    """

    def __init__(self, settings: LlamaSettings, *, startup_timeout_s: float = 300.0) -> None:
        """Nothing is loaded before the server is started."""
        self.settings = settings
        self._startup_timeout_s = check_number("startup_timeout_s", startup_timeout_s, above=0)
        self._process: subprocess.Popen[str] | None = None
        self._messages: IO[str] | None = None
        self._address: str | None = None
        self._timed_out = False
        # Held while the pipes are in use, so that `stop` does not close them during a read.
        self._pipe_lock = threading.Lock()

    @property
    def address(self) -> str:
        """The address of the server, such as `http://127.0.0.1:40001`."""
        if self._address is None:
            raise RuntimeError("the llama.cpp server is not running: start it with `with LlamaServer(…) as server:`")
        return self._address

    @property
    def base_url(self) -> str:
        """The base URL for clients of the OpenAI API."""
        return f"{self.address}/v1"

    @property
    def api_key(self) -> Secret:
        """The key that clients must send."""
        return self.settings.api_key

    @property
    def transport(self) -> None:
        """None: requests use the default HTTP transport."""

    @property
    def running(self) -> bool:
        """True while the process runs."""
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start the process, without waiting for the model."""
        if self._process is not None:
            raise RuntimeError("this llama.cpp server has been started already")
        self._timed_out = False
        self._messages = TemporaryFile("w+", errors="replace")  # noqa: SIM115 - open for as long as the process is
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, and a program of our own
            [sys.executable, "-P", _process.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            text=True,
            # Outside of the terminal's process group, so that Ctrl-C reaches only the program that uses the server.
            start_new_session=True,
        )

    def wait_until_ready(self) -> None:
        """Send the settings and block until the model is loaded, or raise `FatalError`."""
        process = self._started()
        watchdog = threading.Timer(self._startup_timeout_s, self._kill_on_timeout)
        watchdog.start()
        try:
            self._address = self._exchange_settings_for_address(process)
        finally:
            watchdog.cancel()
        if self._address is None:
            raise self._startup_failure()

    def stop(self) -> None:
        """
        Kill the process and wait for its end.

        It has no state to lose.
        """
        process, self._process = self._process, None
        messages, self._messages = self._messages, None
        self._address = None
        if process is not None:
            process.kill()
            process.wait()
            with self._pipe_lock:
                for pipe in _pipes(process):
                    # Closing flushes the buffer, which may still hold settings that were never read.
                    with suppress(BrokenPipeError):
                        pipe.close()
        if messages is not None:
            messages.close()

    def __repr__(self) -> str:
        where = f"at {self._address}" if self._address is not None else "not running"
        return f"LlamaServer({self.settings.model!r}, {self.settings.slots} slots, {where})"

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError("call launch() before wait_until_ready()")
        return self._process

    def _exchange_settings_for_address(self, process: subprocess.Popen[str]) -> str | None:
        """Send the settings over a private pipe, and return the address that the process prints."""
        stdin, stdout = _pipes(process)
        with self._pipe_lock:
            # If the process died before it read them, its messages tell why.
            with suppress(BrokenPipeError):
                stdin.write(f"{json.dumps(self.settings.for_process())}\n")
                stdin.flush()
            return stdout.readline().strip() or None

    def _kill_on_timeout(self) -> None:
        self._timed_out = True
        self._started().kill()

    def _startup_failure(self) -> FatalError:
        if self._timed_out:
            message = f"the llama.cpp server did not load {self.settings.model!r} within {self._startup_timeout_s:g} s"
            return FatalError(message, hint="Raise startup_timeout_s, or use a smaller model.")
        return load_error(self.settings, self._error_messages())

    def _error_messages(self) -> str:
        """Return the first three error messages. Later ones are consequences."""
        if self._messages is None:
            return ""
        self._messages.seek(0)
        lines = self._messages.read().splitlines()
        # Lines look like "0.00.005.102 E source: message", and most of them occur twice.
        errors = [text.strip() for _, mark, text in (line.partition(" E ") for line in lines) if mark]
        return "; ".join(list(dict.fromkeys(errors))[:3] or lines[-1:])


def load_error(settings: LlamaSettings, reasons: str) -> FatalError:
    """Build the error for a model that can't be loaded."""
    failure = FatalError(
        f"llama.cpp can't load {str(settings.model_path)!r}",
        hint="Check that it is a complete GGUF file of an architecture that this version of llama.cpp supports.",
    )
    failure.add_note(f"llama.cpp says: {reasons}")
    return failure


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the llama.cpp server was started without pipes")
    return process.stdin, process.stdout
