"""
A loopback server that streams answers of any length, in the shapes of vLLM and OpenAI.

The path of a request says how: `/<shape>/<way>/<tokens>/v1/chat/completions`. All bytes are made in advance.
It runs in its own process and counts what it sends and what clients close, to check their numbers.
Standard library only.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - a bare protocol, so that the server is far from being the limit
import json
import re
import resource
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.http_line import Json, answer_lines

MODEL = "canned"
SHAPES = ("vllm", "openai")
TICK_S = 0.02
"""The least time between two tokens that are written one by one."""

LATER_S = 0.05
BREADTH = 8

AT_ONCE = "at-once"
EACH = "each"
LATER = "later"
RACE = "race"
HOLD = "hold this stream"
"""A question that gets one token, and then nothing more."""

_WORDS = (
    *(" the", " quick", " brown", " fox", " jumps", ",", " over", " a", " lazy", " dog", ".", "\n", " It", "'s", " 42"),
    *(" km", " away", ":", ' "yes', '"', " said", " naïve", " Zoë", " —", " 東京", "\n\n", "1", ")", " for", " x"),
)
_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CALL = re.compile(rb"call (\d+)")
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


def path(shape: str, way: str, tokens: int) -> str:
    """Return the path of an API that answers so."""
    return f"/{shape}/{way}/{tokens}/v1"


def answer(tokens: int) -> str:
    """Return the text of an answer."""
    return "".join([_WORDS[number % len(_WORDS)] for number in range(tokens)])


def _framed(data: str) -> bytes:
    body = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(body), body)


def _chunk(shape: str, choices: list[Any], number: int, usage: Json | None = None) -> bytes:
    chunk: Json = {
        "id": "chatcmpl-8f3f1d0c5b9e4a52a7c1d6e0b3f49a77",
        "object": "chat.completion.chunk",
        "created": 1794872518,
        "model": MODEL,
    }
    if shape == "openai":
        chunk |= {"service_tier": "default", "system_fingerprint": "fp_0123456789"}
    chunk["choices"] = choices
    if shape == "openai" or usage is not None:
        chunk["usage"] = usage
    if shape == "openai":
        # Letters of its own for every chunk, as OpenAI pads them.
        chunk["obfuscation"] = f"{number * 2654435761 % 10**9:x}"[: 1 + number % 9]
    return _framed(json.dumps(chunk, ensure_ascii=False, separators=(",", ":")))


@cache
def pieces(shape: str, tokens: int) -> tuple[bytes, ...]:
    """Return the head, the tokens one by one, and the end."""

    def choice(delta: Json, finish_reason: str | None = None) -> list[Json]:
        return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]

    usage = {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens}
    written = [_chunk(shape, choice({"content": _WORDS[number % len(_WORDS)]}), number + 1) for number in range(tokens)]
    end = _chunk(shape, choice({}, "stop"), 1) + _chunk(shape, [], 2, usage) + _framed("[DONE]") + b"0\r\n\r\n"
    return (_HEAD + _chunk(shape, choice({"role": "assistant", "content": ""}), 0), *written, end)


@cache
def whole(shape: str, tokens: int) -> bytes:
    """Return an answer in one piece."""
    return b"".join(pieces(shape, tokens))


@dataclass
class State:
    """What the server has seen, and the streams that are under way."""

    counts: Counter[str] = field(default_factory=Counter)
    growing: dict[Connection, tuple[tuple[bytes, ...], int]] = field(default_factory=dict)
    """The pieces of each stream that grows with every tick, and the number of the next one."""

    calls: dict[bytes, list[Connection]] = field(default_factory=dict)
    won_at: dict[bytes, float] = field(default_factory=dict)
    slowest_stop_s: float = 0.0
    connections: int = 0

    def tick(self) -> None:
        """Write the next piece of every stream."""
        for connection, (all_pieces, number) in list(self.growing.items()):
            connection.transport.write(all_pieces[number])
            if number + 1 == len(all_pieces):
                del self.growing[connection]
                self.counts["whole"] += 1
            else:
                self.growing[connection] = (all_pieces, number + 1)

    def enter(self, call: bytes, connection: Connection, whole_answer: bytes) -> None:
        """Let the last of a call win as soon as all have arrived."""
        waiting = self.calls.setdefault(call, [])
        waiting.append(connection)
        if len(waiting) == BREADTH:
            winner = waiting.pop()
            self.won_at[call] = time.monotonic()
            winner.transport.write(whole_answer)
            winner.call = None
            self.counts["whole"] += 1

    def leave(self, call: bytes, connection: Connection) -> None:
        """Note how long after the winner a loser was stopped."""
        waiting = self.calls[call]
        waiting.remove(connection)
        self.counts["stopped"] += 1
        took = time.monotonic() - self.won_at.get(call, time.monotonic())
        self.slowest_stop_s = max(self.slowest_stop_s, took)
        self.counts["stopped late"] += took > 0.1
        if not waiting:
            del self.calls[call], self.won_at[call]


class Connection(asyncio.Protocol):
    """One connection, with one request after the other."""

    transport: asyncio.Transport

    def __init__(self, state: State) -> None:
        self._state = state
        self._unread = b""
        self._requests = 0
        self.call: bytes | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._state.connections += 1
        self._state.counts["connected"] += 1

    def connection_lost(self, _: Exception | None) -> None:
        self._state.connections -= 1
        self._state.growing.pop(self, None)
        if self.call is not None:
            self._state.leave(self.call, self)
            self.call = None

    def data_received(self, data: bytes) -> None:
        self._unread += data
        head, end, body = self._unread.partition(_HEAD_END)
        length = _LENGTH.search(head)
        if end and len(body) >= (int(length[1]) if length else 0):
            self._unread = b""
            self._answer(head.split(b" ", 2)[1].decode("latin-1"), body)

    def _answer(self, target: str, body: bytes) -> None:
        state = self._state
        _, shape, way, tokens, *_ = [*target.split("/"), "", "", ""]
        if shape not in SHAPES:
            state.counts["other"] += 1
            self.transport.write(_NOT_FOUND)
            return
        self._requests += 1
        state.counts["requests"] += 1
        state.counts["tokens"] += int(tokens)
        if HOLD.encode() in body:
            self.transport.write(b"".join(pieces(shape, 1)[:2]))
        elif way == EACH and self._requests > 1:
            # The first of a connection only opens it.
            state.counts["one by one"] += 1
            state.growing[self] = (pieces(shape, int(tokens)), 0)
        elif way == RACE:
            found = _CALL.search(body)
            assert found is not None
            self.call = found[1]
            state.enter(self.call, self, whole(shape, int(tokens)))
        elif way == LATER:
            asyncio.get_running_loop().call_later(LATER_S, self.transport.write, whole(shape, int(tokens)))
        else:
            self.transport.write(whole(shape, int(tokens)))


async def main() -> None:
    """Serve until stdin is closed."""
    state = State()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(state), "127.0.0.1", 0, backlog=4_096)
    port = server.sockets[0].getsockname()[1]

    async def tick_on() -> None:
        while True:
            await asyncio.sleep(TICK_S)
            # A client that is slow, or does not get the processor, must not get two tokens in one read.
            while state.growing and _is_unread(port):  # noqa: ASYNC110 - nothing tells when a client has read
                await asyncio.sleep(TICK_S / 5)
            state.tick()

    def report(_: Json) -> Json:
        slowest, state.slowest_stop_s = state.slowest_stop_s, 0.0
        return {
            "port": port,
            "counts": dict(state.counts),
            "connections": state.connections,
            "slowest_stop_s": slowest,
        }

    async with server:
        ticking = asyncio.create_task(tick_on())
        await asyncio.to_thread(answer_lines, report)
        ticking.cancel()


def _is_unread(port: int) -> bool:
    """Return True if a client has not read all that was sent to it."""
    suffix = f":{port:04X}"
    with Path("/proc/net/tcp").open(encoding="ascii") as sockets:
        next(sockets)
        for line in sockets:
            _, _, remote, _, queues, *_ = line.split()
            if remote.endswith(suffix) and not queues.endswith(":00000000"):
                return True
    return False


def allow_many_sockets() -> None:
    """Raise the limit of open files as far as it may be."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    allow_many_sockets()
    asyncio.run(main())
