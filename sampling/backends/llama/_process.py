"""
The program that `LlamaServer` runs in a separate process.

It is started by its path and imports nothing of this package, so that startup takes only as long as the model.
`load_server` is also used to load a model into this process.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

_LOG_NOTHING = 0
_LOG_ERRORS = 1
_LOG_GRACE_S = 0.2


def load_server(settings: Mapping[str, Any], *, quiet: bool = False) -> Any:
    """Load a model and start a llama.cpp server on a free loopback port."""
    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = settings["model_path"]
    params.model_alias = {settings["model"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings["api_key"]]
    params.n_parallel = settings["slots"]
    params.n_ctx = settings["slots"] * settings["context_tokens"]
    # A cancellation is noticed between two batches of a prompt, so small batches free the slot sooner.
    params.n_batch = params.n_ubatch = 512
    params.endpoint_slots = params.endpoint_metrics = True
    params.ui = False
    params.verbosity = _LOG_NOTHING if quiet else _LOG_ERRORS
    if settings["threads"] is not None:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    if settings["gpu_layers"] is not None:
        params.n_gpu_layers = settings["gpu_layers"]
    if settings.get("chat_template") is not None:
        params.chat_template = settings["chat_template"]
    for name, value in settings["sampling"].items():
        setattr(params.sampling, name, value)
    server = xllamacpp.Server(params)
    # Any response shows that the main loop runs. A server that is unloaded before, as when opening is cancelled,
    # waits forever for the loop to end (xllamacpp 2026.10).
    server.handle_metrics()
    return server


def main() -> None:
    """Serve until standard input is closed, which also happens when the parent process is killed."""
    try:
        server = load_server(json.loads(sys.stdin.readline()))
    except Exception:
        # llama.cpp logs in a thread of its own, and the reason would be lost if the process ended before it.
        time.sleep(_LOG_GRACE_S)
        raise
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    # Later output is never read, and might quote a prompt.
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.dup2(devnull, sys.stderr.fileno())
    sys.stdin.read()
    # Skip the destructor of the server, which would wait for running generations.
    os._exit(0)


if __name__ == "__main__":
    main()
