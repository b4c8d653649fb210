"""One round of one library, in a process of its own: so many questions, one after the other, each deep and wide.

Standard library only: the peers' environment imports it too.
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
    """Where to ask, and how."""

    base_url: str
    key: str
    model: str
    depth: int
    breadth: int


Ask = Callable[[str, int], Awaitable[bool]]
"""Asks a question, whose answer is right if it ends with this number, and says whether a right one came."""

Client = Callable[[Round], AbstractAsyncContextManager[Ask]]


def is_right(text: str, answer: int) -> bool:
    """The one check that all contenders use."""
    found = _LAST_NUMBER.search(text)
    return found is not None and int(found[1]) == answer


def serve(client: Client) -> None:
    """Answer each line, which is a round and its questions, with how long each question took, in seconds."""

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
