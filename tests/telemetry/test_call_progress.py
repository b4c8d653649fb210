"""`progress`: a bar for each call, drawn on real consoles and a real terminal, and nothing left behind."""

import os
import pty
import subprocess
import sys
import threading
from contextlib import nullcontext
from io import StringIO
from textwrap import dedent

import anyio
import attrs
import pytest
from rich.console import Console

from sampling import (
    Generation,
    Hooks,
    LoopStarted,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    TransientError,
    Usage,
)
from sampling.telemetry.call_progress import progress
from sampling.testing import After, ScriptedBackend

HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def paper(width=120):
    """A console that is not a terminal: what is drawn on it is drawn once, at the end."""
    return Console(file=StringIO(), width=width)


def terminal(width=120):
    """A console that takes its file for a terminal."""
    return Console(file=StringIO(), width=width, force_terminal=True, color_system=None, legacy_windows=False)


def drawn(console):
    return console.file.getvalue()


def is_yes(text):
    return text == "yes"


def answering(*texts):
    return ScriptedBackend([Generation(text, Usage(100, 3)) for text in texts])


class TestBars:
    def test_a_bar_tells_what_was_done_of_what_is_allowed(self, run):
        """Attempts done of allowed, how they ended, tokens, seconds, and how the call ended."""
        backend = ScriptedBackend(
            [
                After(1, "no"),
                After(1, TransientError("busy")),
                After(9, "late"),
                After(1, Generation("yes", Usage(1_000, 234))),
                After(9, "late"),
            ]
        )

        async def main():
            with progress(console=console, show=True) as hooks:
                strategy = RejectionSamplingStrategy(loop_budget=4, concurrency_budget=3)
                await strategy.sample("hi", None, backend, [is_yes], hooks=hooks)

        console = paper()
        run(main)
        line = drawn(console).strip()
        assert line.startswith("#1 Rejection ")
        assert line.endswith("5 of 12, 1 valid, 1 invalid, 1 errored, 2 cancelled, 1,234 tokens, 2.0 s, validated")

    def test_several_concurrent_calls_have_a_bar_each(self, run):
        """Each bar counts the attempts of its own call, whatever the order in which they end."""

        async def call(depth, delay_s, hooks):
            backend = ScriptedBackend(lambda request: After(delay_s, "no"))
            await MultiTurnStrategy(loop_budget=depth).sample("hi", None, backend, [is_yes], hooks=hooks)

        async def main():
            with progress(console=console, show=True) as hooks:
                async with anyio.create_task_group() as group:
                    for number, (depth, delay_s) in enumerate([(3, 2.0), (5, 0.5), (2, 1.0)]):
                        group.start_soon(call, depth, delay_s, hooks)
                        await anyio.sleep(0.01 * number)

        console = paper()
        run(main)
        lines = drawn(console).strip().splitlines()
        assert [line.split()[:2] for line in lines] == [["#1", "MultiTurn"], ["#2", "MultiTurn"], ["#3", "MultiTurn"]]
        assert [line.partition(" of ")[0].split()[-1] for line in lines] == ["3", "5", "2"]
        assert [line.rpartition("invalid, ")[2].strip() for line in lines] == [
            "6.0 s, exhausted",
            "2.5 s, exhausted",
            "2.0 s, exhausted",
        ]

    def test_many_calls_share_the_last_bar_and_none_is_lost(self, run):
        """The display stays small however many calls there are: the oldest finished ones are put together."""

        async def main():
            with progress(console=console, show=True) as hooks:
                strategy = RejectionSamplingStrategy(loop_budget=2)
                for _ in range(25):
                    await strategy.sample("hi", None, answering("no", "yes"), [is_yes], hooks=hooks)

        console = paper()
        run(main)
        lines = drawn(console).strip().splitlines()
        assert len(lines) == 21
        assert lines[0].startswith("#6 Rejection")
        assert lines[-1].startswith("5 other calls")
        assert "10 of 10, 5 valid, 5 invalid, 1,030 tokens" in lines[-1]

    def test_calls_that_find_no_room_are_counted_too(self, run):
        """With more calls at once than bars, the last ones share one from their start."""

        async def call(hooks):
            strategy = RejectionSamplingStrategy(loop_budget=2)
            backend = ScriptedBackend([After(1, "no"), After(1, "yes")])
            await strategy.sample("hi", None, backend, [is_yes], hooks=hooks)

        async def main():
            with progress(console=console, show=True) as hooks:
                async with anyio.create_task_group() as group:
                    for _ in range(23):
                        group.start_soon(call, hooks)

        console = paper()
        run(main)
        lines = drawn(console).strip().splitlines()
        assert len(lines) == 21
        assert "3 other calls" in lines[-1]
        assert "6 of 6, 3 valid, 3 invalid" in lines[-1]

    def test_what_is_allowed_is_what_the_call_really_had(self, run):
        """The bar is right after a later hook has changed the budgets."""

        async def main():
            with progress(console=console, show=True) as hooks:

                @hooks.on(LoopStarted)
                def shallower(event):
                    return attrs.evolve(event, loop_budget=2)

                await RejectionSamplingStrategy(loop_budget=9).sample(
                    "hi", None, answering("no", "no"), [is_yes], hooks=hooks
                )

        console = paper()
        run(main)
        assert "2 of 2, 2 invalid" in drawn(console)

    def test_neither_question_nor_answer_is_shown(self, run):
        """Row 73: what steers a terminal never gets to it."""

        async def main():
            with progress(console=console, show=True) as hooks:
                backend = answering("answer\x1b[2J", "yes")
                await RejectionSamplingStrategy(loop_budget=2).sample("question", None, backend, [is_yes], hooks=hooks)

        console = paper()
        run(main)
        assert "question" not in drawn(console)
        assert "answer" not in drawn(console)
        assert "\x1b[2J" not in drawn(console)

    @pytest.mark.parametrize("width", [40, 60, 80, 200])
    def test_a_bar_is_one_line_on_any_terminal(self, run, width):
        """A narrow terminal has no bar, and fewer facts. It never cuts a word or wraps a line, which draws over it."""

        async def main():
            with progress(console=console, show=True) as hooks:
                backend = answering(*["no"] * 7, "yes")
                await MultiTurnStrategy(loop_budget=8).sample("hi", None, backend, [is_yes], hooks=hooks)

        console = paper(width)
        run(main)
        [line] = drawn(console).strip().splitlines()
        assert len(line) <= width
        assert line.startswith("#1 MultiTurn ")
        assert "8 of 8" in line
        assert line.endswith(", validated")
        assert "…" not in line


class TestTerminal:
    async def test_the_bars_are_drawn_while_the_call_runs(self):
        """The display follows the events in the middle of a call."""
        console = terminal()
        seen = anyio.Event()

        async def backend(request):
            if request.attempt == 1:
                with anyio.fail_after(20):
                    while "1 of 3, 1 invalid" not in drawn(console):  # noqa: ASYNC110 - the thread that draws has no event
                        await anyio.sleep(0.01)
                seen.set()
            return "no"

        with progress(console=console) as hooks:
            await RejectionSamplingStrategy(loop_budget=3).sample("hi", None, backend, [is_yes], hooks=hooks)
        assert seen.is_set()

    @pytest.mark.parametrize("ending", ["returns", "raises", "is cancelled", "has a bug"])
    async def test_the_terminal_is_as_it_was_however_the_block_ends(self, ending):
        """The cursor is back, the output streams are Python's own again, and no thread is left."""
        console = terminal()
        threads, streams = set(threading.enumerate()), (sys.stdout, sys.stderr)

        async def backend(request):
            if ending == "raises":
                raise TransientError("busy")
            if ending == "is cancelled":
                scope.cancel()
                await anyio.sleep_forever()
            return "yes"

        expected = {"raises": pytest.raises(TransientError), "has a bug": pytest.raises(ZeroDivisionError)}
        with anyio.CancelScope() as scope, expected.get(ending, nullcontext()), progress(console=console) as hooks:
            await RejectionSamplingStrategy().sample("hi", None, backend, hooks=hooks)
            if ending == "has a bug":
                raise ZeroDivisionError

        text = drawn(console)
        assert text.count(HIDE_CURSOR) == text.count(SHOW_CURSOR) == 1
        assert text.endswith(SHOW_CURSOR)
        assert (sys.stdout, sys.stderr) == streams
        assert set(threading.enumerate()) <= threads
        last_line = text.removesuffix(SHOW_CURSOR).strip().splitlines()[-1]
        words = {
            "returns": "validated",
            "raises": "TransientError",
            "is cancelled": "cancelled",
            "has a bug": "validated",
        }
        assert last_line.strip().endswith(words[ending])

    async def test_events_after_the_block_are_ignored(self):
        """Hooks that outlive their display, on a strategy for example, draw nothing and fail nothing."""
        console = terminal()
        with progress(console=console) as hooks:
            strategy = RejectionSamplingStrategy(hooks=hooks)
        before = drawn(console)
        result = await strategy.sample("hi", None, answering("yes"))
        assert result.hook_failures == ()
        assert drawn(console) == before

    def test_a_real_terminal_shows_bars_and_leaves_a_piped_output_alone(self):
        """Output to a pipe stays clean while the bars are on the terminal."""
        program = dedent("""
            import anyio
            from sampling import RejectionSamplingStrategy
            from sampling.telemetry.call_progress import progress
            from sampling.testing import ScriptedBackend

            async def main():
                with progress() as hooks:
                    await RejectionSamplingStrategy().sample("hi", None, ScriptedBackend(["yes"]), hooks=hooks)
                    print("printed")

            anyio.run(main)
        """)
        master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "SAMPLING_PLUGINS": "off"}
        try:
            done = subprocess.run(  # noqa: S603 - runs what stands above
                [sys.executable, "-X", "dev", "-W", "error", "-c", program],
                env=environment,
                stdin=slave,
                stdout=subprocess.PIPE,
                stderr=slave,
                timeout=60,
                check=True,
            )
            shown = os.read(master, 100_000).decode()
        finally:
            os.close(slave)
            os.close(master)
        assert done.stdout == b"printed\n"
        assert "1 of 1" in shown
        assert shown.endswith(SHOW_CURSOR)


class TestSilence:
    def test_it_is_silent_where_there_is_no_terminal(self, run):
        """Nothing is written, and the engine has no hook to call."""

        async def main():
            with progress(console=console) as hooks:
                assert isinstance(hooks, Hooks)
                assert len(hooks) == 0
                await RejectionSamplingStrategy().sample("hi", None, answering("yes"), hooks=hooks)

        console = paper()
        run(main)
        assert drawn(console) == ""

    def test_it_is_silent_on_a_terminal_when_told_so(self, run):
        """show=False is stronger than a terminal."""

        async def main():
            with progress(console=console, show=False) as hooks:
                await RejectionSamplingStrategy().sample("hi", None, answering("yes"), hooks=hooks)

        console = terminal()
        run(main)
        assert drawn(console) == ""

    def test_without_rich_the_error_says_what_to_install(self):
        """Only the progress bar needs its extra, and names it."""
        program = dedent("""
            import sys
            sys.modules["rich"] = None
            import sampling.telemetry
            try:
                import sampling.telemetry.call_progress
            except ImportError as error:
                print(type(error).__name__, error)
        """)
        done = subprocess.run(  # noqa: S603 - runs what stands above
            [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout.startswith("MissingExtra")
        assert 'pip install "sampling[cli]"' in done.stdout

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"console": "stderr"}, r"console must be a rich.console.Console or None, got 'stderr' \(str\)"),
            ({"show": "always"}, r"show must be True or False, got 'always' \(str\)"),
            ({"show": 1}, r"show must be True or False, got 1 \(int\)"),
        ],
    )
    def test_bad_arguments_are_refused(self, arguments, message):
        """The error names the argument, shows the value and says what is allowed."""
        with pytest.raises(TypeError, match=message), progress(**arguments):
            pass
