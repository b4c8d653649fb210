"""`progress(lanes=True)` shows the text of every attempt while it grows, for any call."""

import io
import sys

import anyio
import pytest
from rich.cells import cell_len
from rich.console import Console

from sampling import Generation, MultiTurnStrategy, RejectionSamplingStrategy, Request
from sampling.cli._paced_backend import PacedBackend
from sampling.telemetry.call_progress import _Bars, progress
from sampling.testing import After, ScriptedBackend


class Counting:
    """Each subsample says its number, the later ones more often."""

    async def generate(self, request: Request) -> Generation:
        return await self.stream(request, lambda _: None)

    async def stream(self, request: Request, receive) -> Generation:
        pieces = [str(request.subsample)] * (2 + 3 * request.subsample)
        for piece in pieces:
            receive(piece)
        return Generation("".join(pieces))


def has_a_one(text: str) -> tuple[bool, str]:
    return "1" in text, "no 1 in it. Say 1."


def paper(width=100, **settings) -> Console:
    return Console(file=io.StringIO(), width=width, color_system=None, **settings)


@pytest.fixture(params=[True, False], ids=["terminal", "file"])
def screen(run, request) -> str:
    """Return the display of a call with four attempts, of which the second is valid."""
    console = paper(force_terminal=request.param)

    async def call() -> None:
        strategy = RejectionSamplingStrategy(concurrency_budget=4)
        backend = PacedBackend(Counting(), tokens_per_s=10)
        with progress(lanes=True, console=console, show=True) as hooks:
            await strategy.sample("Count!", None, backend, [has_a_one], hooks=hooks)

    run(call)
    return console.file.getvalue()


def test_every_subsample_is_there_with_its_text_and_how_it_ended(screen):
    """
    The first is wrong, the second right, and the others are cut off where they were at that moment.

    What was wrong is the first sentence of the reason, without the requirement, so that it fits on the line.
    """
    for line in (
        "  1 ✗ 00   no 1 in it",
        "  2 ✓ 11111   right",
        "  3 ✂ 2222",
        "  4 ✂ 3333",
    ):
        assert line in screen
    assert "222222" not in screen
    assert "cut off" in screen
    assert "4 of 4, 1 valid, 1 invalid, 2 cancelled" in screen


def drawn(bars, width=60):
    console = paper(width)
    console.print(bars.render())
    return console.file.getvalue()


def test_a_lane_grows_while_the_call_runs(run):
    """The end of a long text is shown while it is written, and its start when it is whole."""
    bars = _Bars(lanes=True)
    screens = []

    class Writing(Counting):
        async def stream(self, request, receive):
            for number in range(40):
                receive(f"word{number} ")
            screens.append(drawn(bars))
            await anyio.sleep(1)
            return Generation("".join([f"word{number} " for number in range(40)]))

    async def call():
        await RejectionSamplingStrategy().sample("q", None, Writing(), hooks=bars.hooks())

    run(call)
    [growing] = [line for line in screens[0].splitlines() if "word" in line]
    assert growing.startswith("  1 … …")
    assert growing.rstrip().endswith("word38 word39")
    [whole] = [line for line in drawn(bars).splitlines() if "word" in line]
    assert whole.startswith("  1 ✓ word0 word1")
    assert whole.rstrip().endswith("…   right")
    assert all(len(line) <= 60 for line in drawn(bars).splitlines())


@pytest.mark.parametrize("text", ["河流" * 40, "🌊🚣" * 40, "a" * 200], ids=["Chinese", "emoji", "one long word"])
def test_a_wide_text_leaves_room_for_the_remark(run, text):
    """Letters that take two columns are counted as two."""
    bars = _Bars(lanes=True)

    async def call():
        await RejectionSamplingStrategy().sample("q", None, ScriptedBackend([text]), hooks=bars.hooks())

    run(call)
    lane = drawn(bars).splitlines()[1].rstrip()
    assert lane.endswith("…   right")
    assert 58 < cell_len(lane) <= 60


def test_a_text_can_not_move_the_cursor(run):
    """Control characters and line breaks of an answer are shown as spaces."""
    bars = _Bars(lanes=True)

    async def call():
        backend = ScriptedBackend(["\x1b[2Jgone\r\n\x07now"])
        await RejectionSamplingStrategy().sample("q", None, backend, hooks=bars.hooks())

    run(call)
    assert "[2Jgone now" in drawn(bars)
    assert not {"\x1b", "\r", "\x07"} & set(drawn(bars))


def test_lanes_stay_few_however_deep_a_call_is(run):
    """The oldest that have ended make room."""
    bars = _Bars(lanes=True)

    async def call():
        backend = ScriptedBackend(lambda request: After(1, f"try{request.attempt}"))
        await MultiTurnStrategy(loop_budget=40).sample("q", None, backend, [lambda text: False], hooks=bars.hooks())

    run(call)
    assert [f"try{number}" for number in range(24, 40)] == [line.split()[2] for line in drawn(bars).splitlines()[1:]]


def test_only_calls_that_run_have_lanes_if_there_are_several(run):
    """The display of many calls stays small."""
    bars = _Bars(lanes=True)

    async def calls():
        for _ in range(2):
            await RejectionSamplingStrategy().sample("q", None, ScriptedBackend(["answer"]), hooks=bars.hooks())

    run(calls)
    assert 2 == len(drawn(bars).splitlines())
    assert "answer" not in drawn(bars)


def test_without_lanes_no_text_is_listened_to():
    """A bar alone does not make a call stream, and shows no answer."""
    assert {"LoopStarted", "IterationFinished", "LoopFinished"} == {
        hook.event.__name__ for hook in _Bars(lanes=False).hooks()
    }
    with pytest.raises(TypeError, match="lanes"), progress(lanes="yes"):
        pass


class Notebook:
    """Stand in for IPython in the kernel of a notebook."""

    def __init__(self):
        self.kernel = object()
        self.bundles = []
        self.display = self

    def get_ipython(self):
        return self

    def __call__(self, bundle, *, raw, display_id):
        self.bundles.append(bundle)
        return self

    def update(self, bundle, *, raw):
        self.bundles.append(bundle)


def test_a_notebook_gets_an_output_that_is_updated(run, monkeypatch, capsys):
    """HTML for the page, text for others, and nothing on stdout or stderr."""
    notebook = Notebook()
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", type("Module", (), {"display": staticmethod(notebook)}))

    async def call():
        with progress(lanes=True) as hooks:
            await RejectionSamplingStrategy().sample("q", None, ScriptedBackend(["<b>answer"]), hooks=hooks)

    run(call)
    last = notebook.bundles[-1]
    assert "&lt;b&gt;answer" in last["text/html"]
    assert "<b>answer   right" in last["text/plain"]
    assert ("", "") == capsys.readouterr()
    with progress(lanes=True, show=False) as hooks:
        assert not len(hooks)


def test_a_notebook_is_updated_while_the_call_runs(monkeypatch, anyio_backend):
    """The text is there before the answer is whole."""
    notebook = Notebook()
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", type("Module", (), {"display": staticmethod(notebook)}))

    class Waiting(Counting):
        async def stream(self, request, receive):
            receive("half")
            while not any("1 … half" in one["text/plain"] for one in notebook.bundles):  # noqa: ASYNC110 - a thread draws
                await anyio.sleep(0.01)
            return Generation("half of it")

    async def call():
        with progress(lanes=True) as hooks:
            return await RejectionSamplingStrategy().sample("q", None, Waiting(), hooks=hooks)

    assert anyio.run(call, backend=anyio_backend).success
    assert "1 ✓ half of it   right" in notebook.bundles[-1]["text/plain"]
