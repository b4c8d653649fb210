"""
Measure one round of one library, in its own process.

A round is a number of questions, one after the other, each with depth and breadth.
Standard library only, because the environment of the peers imports it, too.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the peers know no other event loop
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from benchmarks.http_line import Json, answer_lines

MAX_TOKENS = 64
TEMPERATURE = 1.0

_LAST_NUMBER = re.compile(r"(-?\d{1,9})\D*$")


@dataclass(frozen=True)
class Round:
    """The server and the settings of a round."""

    base_url: str
    key: str
    model: str
    depth: int
    breadth: int


Ask = Callable[[str, int], Awaitable[bool]]
"""Asks a question, and returns whether a right answer came. A right answer ends with this number."""

Client = Callable[[Round], AbstractAsyncContextManager[Ask]]


def is_right(text: str, answer: int) -> bool:
    """Check an answer. All contenders use this."""
    found = _LAST_NUMBER.search(text)
    return found is not None and int(found[1]) == answer


def serve(client: Client) -> None:
    """
    Answer each line on stdin with the times of a round.

    A line has the fields of `Round`, and the questions. There is one time for each question, in seconds.
    """

    async def ask_all(questions: list[tuple[str, int]], one: Round) -> Json:
        times, right = [], 0
        async with client(one) as ask:
            for text, answer in questions:
                started = time.perf_counter()
                right += await ask(text, answer)
                times.append(time.perf_counter() - started)
        return {"times_s": times, "right": right}

    def one_round(line: dict[str, Any]) -> Json:
        questions = [(text, answer) for text, answer in line.pop("questions")]
        return asyncio.run(ask_all(questions, Round(**line)))

    answer_lines(one_round)
