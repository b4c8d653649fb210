"""Measure what reading the events of a stream costs, without a network: with templates, and one event at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from statistics import median

from benchmarks.report import Check, Row, Section, ratio
from benchmarks.wire_server import SHAPES, answer, pieces
from sampling._redaction import Redactor
from sampling.backends.http._events import EventReader
from sampling.backends.http._sse import EventParser
from sampling.backends.openai._answer import StreamedAnswer

TOKENS = 512
LIMIT = 4 * 1024 * 1024
BOUND = 1.0


def section(rounds: int) -> Section:
    """Read the same bytes in turns."""
    rows = []
    for shape in SHAPES:
        body = b"".join([_unframed(piece) for piece in pieces(shape, TOKENS)])
        reads = [body[start : start + 65_536] for start in range(0, len(body), 65_536)]
        rows.append(_row(f"{shape}, in reads of 64 KB", reads, rounds))
        events = [event + b"\n\n" for event in body.split(b"\n\n") if event]
        rows.append(_row(f"{shape}, one read per token", events, rounds))
    return Section("Reading events, without a network", "CPU µs per token", tuple(rows))


def _unframed(piece: bytes) -> bytes:
    """Return the body in a piece, without the head and the sizes of chunks."""
    lines = piece.rpartition(b"\r\n\r\n")[2] if piece.startswith(b"HTTP/") else piece
    return b"".join([line for line in lines.replace(b"\r\n", b"\0").split(b"\0") if line.startswith(b"data:")])


def _row(name: str, reads: list[bytes], rounds: int) -> Row:
    ways: dict[str, Callable[[list[bytes]], None]] = {
        "ours": _ours,
        "one event at a time": _one_at_a_time,
        "json.loads": _json_alone,
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(5 * rounds):
        for way, read in ways.items():
            started = time.process_time()
            read(reads)
            found[way].append((time.process_time() - started) / TOKENS * 1e6)
    values: dict[str, float | None] = {way: median(times) for way, times in found.items()}
    return Row(name, values, (Check("ours ÷ json.loads", ratio(values["ours"], values["json.loads"]), BOUND),))


def _ours(reads: list[bytes]) -> None:
    read = StreamedAnswer(Redactor(), split_thinking=True)
    reader = EventReader(read, LIMIT)
    for data in reads:
        reader.feed(data)
    assert read.text == answer(TOKENS)


def _one_at_a_time(reads: list[bytes]) -> None:
    read = StreamedAnswer(Redactor(), split_thinking=True)
    parser = EventParser(LIMIT)
    for data in reads:
        for event in parser.events(data):
            read.add(event)
    assert read.text == answer(TOKENS)


def _json_alone(reads: list[bytes]) -> None:
    parser = EventParser(LIMIT)
    for data in reads:
        for event in parser.events(data):
            if event != "[DONE]":
                json.loads(event)
