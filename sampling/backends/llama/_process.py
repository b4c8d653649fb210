"""
The program that a `LlamaServer` runs in a process of its own, and what it shares with answering in this one.

It is started by its path and imports nothing of ours: a server should be up as fast as its model loads.
"""

import importlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

_NOTHING = 0
_ERRORS_ONLY = 1


def load_server(settings: Mapping[str, Any], *, quiet: bool = False) -> Any:
    """Load a model and start llama.cpp's server with it, on a free port of the loopback interface."""
    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = settings["model_path"]
    params.model_alias = {settings["model"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [settings["api_key"]]
    params.n_parallel = settings["slots"]
    params.n_ctx = settings["slots"] * settings["context_tokens"]
    # A cancelled request is noticed between two batches of its prompt, so small ones free its slot sooner.
    params.n_batch = params.n_ubatch = 512
    params.endpoint_slots = params.endpoint_metrics = True
    params.ui = False
    params.verbosity = _NOTHING if quiet else _ERRORS_ONLY
    if settings["threads"] is not None:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    if settings["gpu_layers"] is not None:
        params.n_gpu_layers = settings["gpu_layers"]
    server = xllamacpp.Server(params)
    # The first answer of any kind shows that its main loop runs. A server that is unloaded before that,
    # as when opening it was cancelled, waits for ever for the loop to end (xllamacpp 2026.10).
    server.handle_metrics()
    return server


def main() -> None:
    """Serve until standard input ends: the parent holds its other end, and if the parent is killed, nobody does."""
    server = load_server(json.loads(sys.stdin.readline()))
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    # What is written from here on nobody reads, and it might quote a prompt.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.dup2(nowhere, sys.stderr.fileno())
    sys.stdin.read()
    # Not by way of the server's destructor: it would wait for generations that nobody wants any more.
    os._exit(0)


if __name__ == "__main__":
    main()
