"""
Peers for comparison, each in its own environment.

It is created on first use.
A peer never becomes a dependency of the project.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.worker import NotMeasuredError

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Peer:
    """
    A package to compare with, at an exact version.

    Its environment has other packages at exact versions, too.
    """

    package: str
    version: str
    others: tuple[tuple[str, str], ...] = ()
    settings: tuple[tuple[str, str], ...] = ()  # environment variables. Others with its prefixes are removed.
    prefixes: tuple[str, ...] = ()

    @property
    def versions(self) -> dict[str, str]:
        """All packages of its environment, with their versions."""
        return {self.package: self.version, **dict(self.others)}

    def env(self) -> dict[str, str]:
        """Return the environment variables for its process."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(self.prefixes or "\0")}
        return {**kept, **dict(self.settings)}

    def python(self) -> Path:
        """Return its interpreter, and install the peer if necessary. It is the same Python as ours."""
        venv = HERE / f".venv-{self.package}"
        python = venv / "bin" / "python"
        if self._installed(python):
            return python
        uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
        if uv is None:
            raise NotMeasuredError("uv is needed to install it: make setup")
        wanted = [f"{package}=={version}" for package, version in self.versions.items()]
        print(f"Installing {', '.join(wanted)} into benchmarks/{venv.name} …", file=sys.stderr)
        _run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, venv)
        _run(uv, "pip", "install", "--quiet", "--python", python, *wanted)
        if not self._installed(python):
            raise NotMeasuredError(f"{', '.join(wanted)} was installed, but can't be found afterwards")
        return python

    def _installed(self, python: Path) -> bool:
        if not python.exists():
            return False
        code = (
            "import importlib.metadata, json, sys; "
            "versions = [importlib.metadata.version(package) for package in sys.argv[1:]]; "
            "print(json.dumps([versions, sys.version]))"
        )
        found = subprocess.run([python, "-c", code, *self.versions], capture_output=True, text=True, check=False)
        return found.returncode == 0 and json.loads(found.stdout) == [list(self.versions.values()), sys.version]


def _run(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotMeasuredError(f"it can't be installed: {done.stderr.strip()}")


MELLEA = Peer(
    "mellea",
    "0.8.0",
    others=(("openai", "3.49.0"),),
    settings=(("MELLEA_LOGS_ENABLED", "false"), ("MELLEA_LOGS_LEVEL", "CRITICAL")),
    prefixes=("MELLEA_", "OTEL_", "OPENAI_"),
)

GUIDELLM = Peer(
    "guidellm",
    "0.8.1",
    # No downloads: the server is on loopback, and no tokenizer is needed. It would start ten processes for each load,
    # which import torch, and one is plenty for tens of requests per second.
    settings=(("HF_HUB_OFFLINE", "1"), ("HF_DATASETS_OFFLINE", "1"), ("GUIDELLM__MAX_WORKER_PROCESSES", "1")),
    prefixes=("GUIDELLM_", "OTEL_", "OPENAI_"),
)
LOCUST = Peer("locust", "2.42.0", prefixes=("LOCUST_",))
