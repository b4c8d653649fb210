"""
Exchange lines of JSON with the processes of a suite.

Standard library only, because the environments of the peers import it.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from benchmarks.worker import NotMeasuredError, Worker

Json = dict[str, Any]


def answer_lines(handle: Callable[[Json], Json]) -> None:
    """Answer every line on stdin."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of a contender must not be taken for an answer
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        try:
            answer = handle(json.loads(line))
        except Exception:  # noqa: BLE001 - it is reported to the other process
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers)


class LineWorker(Worker):
    """A process that answers lines."""

    def ask(self, **question: Any) -> Json:
        """Send a line, and wait for the answer."""
        assert self._process.stdin is not None
        try:
            print(json.dumps(question), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise NotMeasuredError("its process has died") from None
        return self._answer()
