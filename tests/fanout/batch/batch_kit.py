"""Helpers for the tests of batches: a server without sockets, and runs against it in virtual time."""

from contextlib import asynccontextmanager

import anyio

from sampling import OpenAIBackend, RejectionSamplingStrategy, Requirement
from sampling.backends.anthropic import AnthropicBackend
from sampling.fanout import BatchEngine, fan_out
from sampling.testing.batch_servers import BatchServer

ONCE = RejectionSamplingStrategy()
YES = Requirement("says yes", lambda text: text.startswith("yes"))
HOUR = 3600.0


def server_of(answer=None, latency_s=HOUR):
    """A server whose batches take an hour of virtual time."""
    server = BatchServer(answer or (lambda request: "yes"), latency_s=latency_s)
    # The clock of an event loop exists only inside it.
    server.clock = anyio.current_time
    return server


def openai(server, key="key", **settings):
    return OpenAIBackend(server.url, key, "model", **{"transport": server.transport, **settings})


def anthropic(server, key="key", **settings):
    return AnthropicBackend("model", key, base_url=server.url, **{"transport": server.transport, **settings})


PROVIDERS = {"openai": openai, "anthropic": anthropic}


def questions(count):
    return [f"question {number}" for number in range(count)]


async def batched(backend, items, reqs=(YES,), *, strategy=ONCE, engine=None, **settings):
    """Fan out over batches, and return the result."""
    return await fan_out(strategy, items, None, backend, reqs, engine=engine or BatchEngine(), **settings)


@asynccontextmanager
async def cancelled_after(seconds):
    """Cancel the block after some time."""
    with anyio.move_on_after(seconds):
        yield


def sizes(server):
    return [len(batch.requests) for batch in server.batches]


def paid_twice(server):
    return {custom_id: count for custom_id, count in server.billed.items() if count > 1}


def losing_creations(server, count=1):
    """Let the server create its first batches, and lose the answers that say so."""
    lost = []

    def drop(method, path):
        if method == "POST" and path.endswith("/batches") and len(lost) < count:
            lost.append(path)
            return True
        return False

    server.drop = drop
    return server
