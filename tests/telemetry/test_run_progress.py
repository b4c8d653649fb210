"""`fan_out_progress`: one line for a whole run."""

import json
import re
import sys
import threading
import time
from io import StringIO

import anyio
import pytest
from rich.console import Console
from rich.text import Text

from sampling import Generation, RejectionSamplingStrategy, Requirement, Usage, fan_out
from sampling.fanout.items import ItemFinished, ItemOutcome
from sampling.load import ClosedLoop, LoadRun
from sampling.telemetry import run_progress as module
from sampling.telemetry._live import live_display
from sampling.telemetry.run_progress import fan_out_progress, load_progress, run_progress
from sampling.testing import After, ScriptedBackend

ONCE = RejectionSamplingStrategy()
YES = Requirement("says yes", "yes".__eq__)


def paper(width=160):
    return Console(file=StringIO(), width=width)


def drawn(console):
    return console.file.getvalue()


def numbers(count):
    return [str(number) for number in range(count)]


def asked(request):
    return request.messages[-1].content


def test_the_line_tells_what_was_done_and_what_it_took(run):
    """Progress shows counts, tokens, cost and the final status."""
    replies = {"1": "no", "2": RuntimeError("broken")}
    backend = ScriptedBackend(lambda r: replies.get(asked(r), Generation("yes", Usage(100, 20, 0.25))))
    console = paper()
    with fan_out_progress(console=console, show=True) as hooks:
        run(fan_out, ONCE, numbers(1_003), None, backend, [YES], hooks=hooks, on_error="continue", max_concurrency=4)
    line = " ".join(drawn(console).split())
    assert re.search(r"1,003 of 1,003, 1 failed, 1 errored, 120,120 tokens, cost 250\.2, \d+ s, completed", line)


def test_a_stream_has_no_total_unless_it_is_told(run):
    """A generator has no length."""
    for total, shown in ((None, "7, "), (9, "7 of 9, ")):
        console = paper()
        with fan_out_progress(console=console, show=True, total=total) as hooks:
            run(fan_out, ONCE, iter(numbers(7)), None, ScriptedBackend(lambda _: "yes"), hooks=hooks)
        assert shown in drawn(console)


def test_what_came_from_the_journal_is_told_apart(run, tmp_path):
    """It is done, but nothing was asked."""
    for expected in ("5 of 5, ", "5 of 5, 5 from the journal"):
        console = paper()
        with fan_out_progress(console=console, show=True) as hooks:
            run(
                fan_out,
                ONCE,
                numbers(5),
                None,
                ScriptedBackend(lambda _: "yes"),
                hooks=hooks,
                journal=tmp_path / "run.db",
            )
        assert expected in drawn(console)


def test_rate_and_time_left(monkeypatch):
    """The rate is over the last half minute, without items from the journal."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    line = module._RunLine(10_000)
    line._statuses["succeeded"] += 5_000
    line._recorded = 5_000
    line.render()
    for _ in range(10):
        now[0] += 1.0
        line._statuses["succeeded"] += 50
        line.render()
    console = paper()
    console.print(line.render())
    assert "5,500 of 10,000, 5,000 from the journal, 50 a second, 1 min 30 s left" in drawn(console)


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 00 s"), (3_725, "1 h 02 min"), (-3, "0 s")])
def test_times_can_be_read(seconds, text):
    """Times are shown in their two largest units."""
    assert text == module._format_duration(seconds)


def test_off_a_terminal_nothing_is_shown_and_nothing_is_hooked(run):
    """The run stays as fast as without."""
    console = paper()
    with fan_out_progress(console=console) as hooks:
        assert 0 == len(hooks)
        run(fan_out, ONCE, numbers(3), None, ScriptedBackend(lambda _: After(1.0, "yes")), hooks=hooks)
    assert "" == drawn(console)


def leave_in_the_middle():
    with fan_out_progress(console=paper(), show=True):
        time.sleep(0.15)
        raise LookupError("out of here")


def test_no_thread_is_left():
    """However the block is left."""
    before = set(threading.enumerate())
    with pytest.raises(LookupError, match="out of here"):
        leave_in_the_middle()
    assert set(threading.enumerate()) <= before


def test_a_bad_total_is_named():
    """Bad input: the argument, the value, and what is allowed."""
    with pytest.raises(ValueError, match="total must be >= 0, got -1"), fan_out_progress(total=-1):
        pass


class Lines(StringIO):
    """A log that says when it has a line."""

    def __init__(self):
        super().__init__()
        self.written = threading.Event()

    def write(self, text):
        super().write(text)
        self.written.set()


def test_in_a_log_it_is_a_plain_line_now_and_then():
    """Without a bar, and with the figures of that moment."""
    log = Lines()
    with fan_out_progress(total=10, console=Console(file=log), print_every_s=0.001) as hooks:
        outcome = ItemOutcome(0, "0", "failed", usage=Usage(900, 100, 0.25))
        for hook in hooks:
            if hook.event is ItemFinished:
                ids = {"sampling_id": "", "parent_id": None, "strategy": "", "run_id": ""}
                hook.function(ItemFinished(**ids, outcome=outcome, recorded=True))
        log.written.clear()
        assert log.written.wait(60)
    assert "1 of 10, 1 from the journal, 1 failed, 1,000 tokens, cost 0.25" == log.getvalue().splitlines()[-1]


def test_a_line_that_has_not_changed_is_not_printed_again():
    """A log of a slow run has no lines that say nothing new."""
    log, asked = StringIO(), threading.Semaphore(0)
    lines = iter(["0 of 2", "0 of 2", "0 of 2", "1 of 2", "1 of 2", "0 of 2"])

    def line():
        asked.release()
        return next(lines, "0 of 2")

    with live_display(Text, Console(file=log), show=None, line=line, line_every_s=0.001):
        for _ in range(8):
            assert asked.acquire(timeout=60)
    assert ["0 of 2", "1 of 2", "0 of 2"] == log.getvalue().splitlines()


def test_a_run_of_another_kind_says_how_far_it_is():
    """A load test, or a loop of your own: a text, and the share that is done. The last line is gone at the end."""
    console = Console(file=StringIO(), force_terminal=True, width=80, color_system=None)
    with run_progress(console=console) as update:
        update("5 s: 10 sent", 0.5)
    assert "5 s: 10 sent" in drawn(console)
    log = Lines()
    with run_progress(console=Console(file=log), print_every_s=0.001) as update:
        update("half of it", None)
        assert log.written.wait(60)
    assert "half of it" == log.getvalue().splitlines()[-1]
    with pytest.raises(TypeError, match="print_every_s"), fan_out_progress(print_every_s="often"):
        pass


def test_a_load_run_has_the_same_line(run):
    """Its counts so far, with a bar if its duration is known."""
    console = paper()

    async def send():
        load = LoadRun(workload, ClosedLoop(users=2, requests=6))
        with load_progress(load, total_s=1, console=console, show=True):
            await load.run()

    async def workload(arrival):
        await anyio.sleep(0.1)

    run(send)
    assert " s: 6 sent, 0 in flight, 6 answered" in drawn(console)


class Terminal(StringIO):
    """Standard output and standard error of a program in a terminal."""

    def isatty(self):
        return True


def test_a_long_line_that_is_printed_in_a_terminal_stays_one_line(monkeypatch):
    """The terminal wraps it. A line of JSON that the display had wrapped could not be copied."""
    shown, answer = Terminal(), json.dumps({"text": "word " * 60, "markup": "[red]"})
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    with fan_out_progress(total=2):
        sys.stdout.write(f"{answer}\n")
    assert answer in shown.getvalue()


class ClosedTerminal(StringIO):
    """A terminal whose connection drops."""

    is_gone = False

    def write(self, text):
        if self.is_gone:
            raise OSError(5, "Input/output error")
        return super().write(text)


def test_a_closed_terminal_does_not_end_a_run():
    """Whatever is drawn on it is lost, and nothing else."""
    terminal = ClosedTerminal()
    drawn_since = threading.Event()

    def render():
        if terminal.is_gone:
            drawn_since.set()
        return Text("line")

    with live_display(render, Console(file=terminal, force_terminal=True), show=None) as is_drawn:
        terminal.is_gone = True
        assert (True, True) == (is_drawn, drawn_since.wait(30))
