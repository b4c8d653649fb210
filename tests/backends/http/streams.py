"""
Mutated streams of all recorded servers, read twice: by the reader of events, and one event at a time.

`python -m benchmarks.events` runs it for hundreds of thousands of streams.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from sampling._redaction import Redactor
from sampling.backends.anthropic._answer import StreamedMessage
from sampling.backends.gemini._answer import StreamedGeminiAnswer
from sampling.backends.http._events import EventReader
from sampling.backends.http._sse import EventParser
from sampling.backends.http._streamed import StreamedResponse
from sampling.backends.openai._answer import StreamedAnswer
from sampling.backends.openai._responses_answer import StreamedResponsesAnswer
from sampling.errors import BackendError

BACKENDS = Path(__file__).parent.parent
LIMIT = 100_000

TEXTS = [
    *("Hello", " world", "a", " the", ".", "7", "0", "stop", "content", "delta", "index", "null", "m", "true"),
    *(" ", "\n", "\t", "\n\n", "\r", '"', "\\", '\\"', 'say "hi"', "C:\\new", "{", "}", "[" * 70, "data: x", ": ping"),
    *("é", "한국어", "😀", "\u2028", "\ufeff", "\ud83d", "\ude00", "\ufffd", "\x7f", "\x00", "\x1f", "\u0085"),
    *("<think>", "<thi", "nk>", "hm", "</think>", "</th", "ink>", "", "[DONE]", "data: [DONE]\n\n", "x" * 200),
]
NOISE = [
    *(b"data:", b"data: ", b"event: x\n", b": ping\n\n", b"\n", b"\n\n", b"\r", b"\r\n", b"\r\n\r\n", b" ", b"null"),
    *(b"[", b"{", b"}", b'"', b"\\", b"\\u00e9", b"\\ud83d", b"\\", b"-1", b"01", b"1e999", b"NaN", b"\xff", b"\0"),
    *(b"\xc3", b"\xa9", b"\xef\xbb\xbf", b"[DONE]", b"data: [DONE]\n\n", b"data:\n\n", b'"obfuscation":"x/y"', b'","'),
    *(b'"finish_reason":"stop"', b'"finish_reason":"length",', b'"usage":{"prompt_tokens":3,"completion_tokens":9},'),
    *(b'"id":"other",', b'"error":{"message":"boom"},', b'"index":1', b'"logprobs":{"content":[]}', b'"model":"n",'),
]


@attrs.frozen
class Server:
    """A recorded stream, as its events, with what reads it."""

    name: str
    events: tuple[bytes, ...]
    new_answer: Callable[[random.Random], StreamedResponse]


def _chat(rng: random.Random) -> StreamedResponse:
    return StreamedAnswer(
        Redactor(),
        expected_choices=rng.choice((1, 1, 1, 2)),
        input_tokens_estimate=3,
        check_ids=rng.random() < 0.8,
        split_thinking=rng.random() < 0.5,
    )


def _other(kind: Callable[..., StreamedResponse], _: random.Random) -> StreamedResponse:
    return kind(Redactor(), input_tokens_estimate=3)


def servers() -> list[Server]:
    """Return all recorded streams, and streams that no recording has."""
    found = [Server(name, events, _chat) for name, events in _WRITTEN.items()]
    for path in sorted(BACKENDS.glob("*/shapes/*.sse")):
        new_answer: Callable[[random.Random], StreamedResponse] = _chat
        if path.parent.parent.name == "anthropic":
            new_answer = partial(_other, StreamedMessage)
        elif path.parent.parent.name == "gemini":
            new_answer = partial(_other, StreamedGeminiAnswer)
        elif path.name.startswith("responses"):
            new_answer = partial(_other, StreamedResponsesAnswer)
        blocks = path.read_bytes().replace(b"\r\n", b"\n").split(b"\n\n")
        events = tuple([block + b"\n\n" for block in blocks if block.strip()])
        found.append(Server(f"{path.parent.parent.name}/{path.name}", events, new_answer))
    return found


def _chunk(**fields: Any) -> bytes:
    common = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_750_000_000, "model": "m"}
    return b"data: " + json.dumps({**common, **fields}, separators=(",", ":")).encode() + b"\n\n"


def _delta(finish_reason: str | None = None, /, *, index: int = 0, **delta: Any) -> bytes:
    return _chunk(choices=[{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}])


_END = (_delta("stop"), _chunk(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 2}), b"data: [DONE]\n\n")
_WRITTEN = {
    "plain": (_delta(role="assistant", content=""), _delta(content="one"), _delta(content=" two"), *_END),
    "reasoning first": (_delta(reasoning_content="hm"), _delta(content="yes"), *_END),
    "think tags": (_delta(content="<think>"), _delta(content="hm"), _delta(content="</think>"), _delta(content="yes")),
    "finish_reason on every chunk": (_delta("stop", content="one"), _delta("stop", content=" two")),
    "usage in every chunk": (
        _chunk(choices=[{"index": 0, "delta": {"content": "one"}}], usage={"prompt_tokens": 3, "completion_tokens": 1}),
        _chunk(choices=[{"index": 0, "delta": {"content": "two"}}], usage={"prompt_tokens": 3, "completion_tokens": 2}),
        *_END,
    ),
    "an id for every chunk": (_chunk(id="a", choices=[{"delta": {"content": "x"}}]), _delta(content="y"), *_END),
    "two choices": (_delta(content="a"), _delta(content="b", index=1), _delta(content="c"), *_END),
    "padded": (
        _chunk(choices=[{"index": 0, "delta": {"content": "one"}}], usage=None, obfuscation="aB3"),
        _chunk(choices=[{"index": 0, "delta": {"content": "two"}}], usage=None, obfuscation="x"),
        *_END,
    ),
    "completions": (
        _chunk(choices=[{"index": 0, "text": "one", "logprobs": None, "finish_reason": None}]),
        _chunk(choices=[{"index": 0, "text": " two", "finish_reason": "stop"}]),
    ),
    "logprobs": (
        _chunk(choices=[{"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [{"token": "a"}]}}]),
        *_END,
    ),
    "halves of a character": (_delta(content="\ud83d"), _delta(content="\ude00"), _delta(content="x"), *_END),
}


def grown(rng: random.Random, server: Server) -> list[bytes]:
    """Return the events of a server, with many more that differ from some of them only in their text."""
    answer = server.new_answer(rng)
    events: list[bytes] = []
    for raw in server.events:
        events.append(raw)
        before = answer.chunk
        try:
            for data in EventParser(LIMIT).feed(raw):
                answer.add(data)
        except BackendError:
            continue
        plain = None if answer.chunk is before else answer.plain(answer.chunk)
        if plain is not None:
            if rng.random() < 0.3:
                events.pop()
            events += [_with_text(rng, raw, plain.text) for _ in range(rng.choice((0, 2, 6, 12)))]
    return events


def _with_text(rng: random.Random, raw: bytes, text: str) -> bytes:
    """Return an event with another text, and other values in the fields that mean nothing."""
    other = rng.choice(TEXTS) if rng.random() < 0.5 else rng.choice(("one", " two", " three", "ok"))
    encoded = json.dumps(other, ensure_ascii=rng.random() < 0.3).encode("utf-8", "surrogatepass")
    if rng.random() < 0.1 and "\n" not in other and len(other) < 20:
        # The same text, with every character escaped.
        encoded = b'"' + "".join([f"\\u{ord(char):04x}" for char in other if ord(char) < 0x10000]).encode() + b'"'
    found = json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")
    raw = raw.replace(found, encoded, 1)
    for name in (b'"obfuscation":"', b'"sequence_number":'):
        before, at, after = raw.partition(name)
        if at and rng.random() < 0.9:
            raw = before + at + str(rng.randrange(10**6)).encode() + after.lstrip(b"0123456789")
    return raw


def with_other_events(rng: random.Random, events: list[bytes], others: list[Server]) -> bytes:
    """Remove, repeat and insert events, and change line ends."""
    events = list(events)
    for _ in range(rng.choice((0, 0, 1, 2))):
        at = rng.randrange(len(events) + 1)
        match rng.randrange(4):
            case 0:
                del events[at : at + 1]
            case 1:
                events[at:at] = events[at : at + 1] * 3
            case 2:
                events.insert(at, rng.choice(rng.choice(others).events))
            case _:
                events.insert(at, rng.choice((b": ping\n\n", b"\n", b"data: \n\n", b"data: [DONE]\n\n", b"event: x\n")))
    data = b"".join(events)
    return data.replace(b"\n", rng.choice((b"\r\n", b"\r"))) if rng.random() < 0.1 else data


def mutated(rng: random.Random, stream: bytes) -> bytes:
    """Change the bytes of a stream in a few places, or in none."""
    data = bytearray(stream)
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.choice((0, 1, 1, 2, 5, 40)))
        match rng.randrange(6):
            case 0:
                data[start:end] = rng.randbytes(end - start)
            case 1:
                del data[start:end]
            case 2 | 3:
                data[start:end] = rng.choice(NOISE)
            case 4:
                data[start:start] = data[start:end] * 2
            case _:
                del data[start + 1 + rng.randrange(1 + len(data) - start) :]
    return bytes(data)


def reads(rng: random.Random, stream: bytes) -> list[bytes]:
    """Cut a stream as a network might: whole, by event, or anywhere."""
    match rng.randrange(5):
        case 0:
            return [stream]
        case 1:
            return [block + b"\n\n" for block in stream.split(b"\n\n") if block]
        case 2:
            sizes = rng.choice(((13,), (64,), (300,), (1_500,)))
        case _:
            sizes = (1, 40, 200, 1_000, 4_096)
    pieces, position = [], 0
    while position < len(stream):
        size = rng.choice(sizes)
        pieces.append(stream[position : position + size])
        position += size
    return pieces


class _StopReadingError(Exception):
    """Raised by a receiver that has seen enough."""


def _receiver(pieces: list[str], limit: int) -> Callable[[str], None]:
    def receive(piece: str) -> None:
        pieces.append(piece)
        if len(pieces) > limit:
            raise _StopReadingError

    return receive


def read_with_care(answer: StreamedResponse, given: list[bytes], limit: int, receive: Any) -> None:
    """Read one event after the other, with nothing that makes it fast."""
    parser = EventParser(limit)

    def all_events() -> Iterator[str]:
        for data in given:
            # Not `events`, which has a shorter way for some of them.
            yield from parser._parse(data)
        yield from parser.close()

    for event in all_events():
        piece = answer.add(event)
        if piece and receive is not None:
            receive(piece)
        if answer.done:
            break


def read_fast(answer: StreamedResponse, given: list[bytes], limit: int, receive: Any) -> None:
    """Read as the backend does."""
    reader = EventReader(answer, limit, receive)
    try:
        for data in [*given, b""]:
            reader.feed(data)
            if answer.done:
                break
    finally:
        READ["texts without JSON"] += reader.texts_without_json


READ: Counter[str] = Counter()
"""What was read, to show that both ways were taken."""


def outcome(read: Callable[..., object], answer: StreamedResponse, *arguments: Any) -> list[Any]:
    """Return all that can be seen of an answer after reading, and how reading ended."""
    ended: list[Any] = []
    try:
        read(answer, *arguments)
        ended.append(answer.finish())
        ended.append(answer.generation())
    except (BackendError, _StopReadingError) as error:
        ended += [type(error), str(error), getattr(error, "maybe_billed", None), getattr(error, "partial_text", None)]
    state = [answer.text, answer.spent, answer.started, answer.finished, answer.done]
    try:
        state.append(answer.generation(allow_missing_finish=True))
    except BackendError as error:
        state.append(str(error))
    return [ended, state]


def difference(seed: int, known: list[Server]) -> str | None:
    """Read one mutated stream in both ways, and return what differs."""
    rng = random.Random(seed)
    server = known[seed % len(known)]
    stream = mutated(rng, with_other_events(rng, grown(rng, server), known))
    given = reads(rng, stream)
    limit = rng.choice((LIMIT, LIMIT, LIMIT, 150, 400))
    watched, stop_after = rng.random() < 0.5, rng.choice((3, 1_000))
    settings = rng.getrandbits(32)
    outcomes: list[Any] = []
    for read in (read_with_care, read_fast):
        pieces: list[str] = []
        receive = _receiver(pieces, stop_after) if watched else None
        answer = server.new_answer(random.Random(settings))
        outcomes.append([*outcome(read, answer, given, limit, receive), pieces])
    if outcomes[0] == outcomes[1]:
        return None
    return f"seed {seed}, {server.name}: {given!r}\n  with care: {outcomes[0]!r}\n  fast:      {outcomes[1]!r}"
