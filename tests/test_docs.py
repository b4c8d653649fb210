"""The documentation is correct: code blocks run and print what the page shows, links resolve, examples work."""

import ast
import code
import contextlib
import inspect
import io
import json
import linecache
import os
import pty
import re
import select
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import anyio
import attrs
import pytest
import structlog
from anyio.from_thread import start_blocking_portal

from sampling.testing import BOTH_LOOPS, run_virtual
from sampling.testing.servers import OpenAIServer, ReceivedRequest, Reply

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
README = "README.md"
REAL_TIME = {README, "docs/index.md", "docs/how-to/ask-about-images.md", "docs/how-to/use-batches.md"}
"""Pages that use a socket."""

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
EXAMPLES = sorted(
    path for path in (ROOT / "examples").glob("*.py") if '__name__ == "__main__"' in path.read_text("utf-8")
)

FENCE = re.compile(r"^```(?P<kind>\w*)[^\n]*\n(?P<body>.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ +(?P<title>.+?) *$", re.MULTILINE)


def script(name: str) -> SimpleNamespace:
    """Return the namespace of a build script."""
    return SimpleNamespace(**run_path(str(ROOT / ".ci" / f"{name}.py")))


reference = script("reference")
draw_storeys = script("draw_storeys")

GENERATED = {DOCS / reference.page_path(module): module for module in reference.public_modules()}
"""The pages of the reference that the build generates, with their modules."""

ENTRIES = reference.entries()
"""The anchors of these pages: the full name of everything that is documented on one of them."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@attrs.frozen
class Block:
    """One fenced block of a page."""

    kind: str
    body: str
    line: int
    """The line of the page on which the body begins, counted from 1."""


NO_BLOCK = Block("", "", 0)


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(found["kind"], found["body"], text.count("\n", 0, found.start("body")) + 1)
        for found in FENCE.finditer(text)
    ]


class PageRun:
    """Runs the python blocks of one page in one namespace: in virtual time, or in real time if they use a socket."""

    def __init__(self, page: Path, loop: str) -> None:
        self.filename = name_of(page)
        self._loop = loop
        self._namespace: dict[str, object] = {"__name__": "__main__"}
        self._lines: list[str] = []

    def run(self, block: Block) -> str:
        """Run one block and the tests that it defines, and return its output."""
        source = self._at_its_line(block)
        known = set(self._namespace)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = compile(source, self.filename, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            if code.co_flags & inspect.CO_COROUTINE:
                self._run_async(lambda: eval(code, self._namespace))  # noqa: S307 - our own pages
            else:
                exec(code, self._namespace)  # noqa: S102 - our own pages
        with contextlib.redirect_stdout(io.StringIO()):
            # pytest would keep what a test prints to itself, too.
            for name in [name for name in self._namespace if name.startswith("test_") and name not in known]:
                self._run_test(self._namespace[name])
        return printed.getvalue()

    def _at_its_line(self, block: Block) -> str:
        """Pad the source so that tracebacks show the lines of the page, and register it in `linecache`."""
        source = "\n" * (block.line - 1) + block.body
        self._lines += [""] * (block.line - 1 - len(self._lines)) + block.body.splitlines()
        lines = [f"{line}\n" for line in self._lines]
        linecache.cache[self.filename] = (sum(map(len, lines)), None, lines, self.filename)
        return source

    def _run_test(self, test: object) -> None:
        assert callable(test)
        if inspect.iscoroutinefunction(test):
            self._run_async(test)
        else:
            test()

    def _run_async(self, function: object) -> None:
        if self.filename in REAL_TIME:
            anyio.run(function, backend=self._loop)
            return
        run_virtual(function, loop=self._loop, seed=None if self._loop == "asyncio" else 0)


def matches(shown: str, printed: str) -> bool:
    """Return True if the output is what the page shows, where `...` matches anything."""
    pattern = ".*?".join(re.escape(part) for part in shown.strip().split("..."))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


@pytest.fixture(autouse=True)
def _default_logging() -> Iterator[None]:
    """Undo the structlog configuration of a page."""
    yield
    structlog.reset_defaults()


def river(request: ReceivedRequest) -> Reply:
    """Answer the question of README.md: in miles at first, in kilometres when told that this is wrong."""
    return Reply([json.dumps({"name": "Rhine", "km": 766 if len(request.json()["messages"]) == 1 else 1233})])


@pytest.fixture
def _openai(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Answer in place of OpenAI, on loopback."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(OpenAIServer(river)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "not-a-key")
        yield


@pytest.mark.usefixtures("_openai")
@pytest.mark.parametrize("loop", BOTH_LOOPS)
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_python_block_runs_and_prints_what_the_page_shows(page: Path, loop: str):
    """A text block is the complete output of the python block before it, on both event loops."""
    run = PageRun(page, loop)
    for block, following in pairwise([*blocks_of(page), NO_BLOCK]):
        if block.kind != "python":
            continue
        printed = run.run(block)
        shown = following.body if following.kind == "text" else ""
        assert matches(shown, printed), (
            f"{name_of(page)}:{block.line} shows\n{textwrap.indent(shown, '  ')}\nbut prints\n"
            f"{textwrap.indent(printed, '  ')}"
        )


class Shell(code.InteractiveConsole):
    """Reads lines as `python -m asyncio` does, and runs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.compile.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self.refused: list[str] = []

    def runcode(self, code: object) -> None:
        """Leave it at having understood it."""

    def showsyntaxerror(self, *_args: object, **_options: object) -> None:
        self.refused.append("\n".join(self.buffer))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_python_block_can_be_pasted_into_a_shell(page: Path):
    """An empty line ends a class or a function there, so these have none inside, and one after them."""
    for block in blocks_of(page):
        if block.kind != "python":
            continue
        shell = Shell()
        for line in [*block.body.splitlines(), ""]:
            waits = shell.push(line)
        assert ([], False) == (shell.refused, waits), f"{name_of(page)}:{block.line}"


PASTED = [ROOT / README, DOCS / "index.md", *sorted((DOCS / "tutorial").glob("*.md"))]
PASTED += [DOCS / "how-to" / f"{name}.md" for name in ("stream-to-the-caller", "write-a-strategy")]


def pasted_into_a_pipe(blocks: list[str], *shell: str) -> str:
    """Give a shell one line after the other, as a terminal does to the shells before Python 3.13."""
    # Text that is pasted ends blocks as typed text does: with an empty line.
    text = "\n\n".join([*blocks, "print('pasted', 'all')\n"])
    done = subprocess.run(  # noqa: S603 - our own pages
        [sys.executable, *shell], input=text, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr


class Terminal:
    """A shell that runs in a terminal."""

    def __init__(self, *command: str) -> None:
        self.output = ""
        self._own, theirs = pty.openpty()
        env = {**os.environ, "TERM": "xterm", "PYTHON_COLORS": "0"}
        self._process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)  # noqa: S603
        os.close(theirs)

    def paste(self, text: str) -> None:
        os.write(self._own, f"\x1b[200~{text}\x1b[201~\n".encode())

    def read_until(self, text: str) -> str:
        """Return what the shell wrote before this."""
        deadline_s = time.monotonic() + 120
        while text not in self._plain():
            assert time.monotonic() < deadline_s, self._plain()
            if select.select([self._own], [], [], 1)[0]:
                self.output += os.read(self._own, 65_536).decode("utf-8", "replace")
        before, _, self.output = self._plain().partition(text)
        return before

    def _plain(self) -> str:
        return re.sub(r"\x1b(?:\[[0-9;?]*[a-zA-Z]|[=>])", "", self.output)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._own)


def pasted_into_a_terminal(blocks: list[str], *shell: str) -> str:
    """Paste a block at a time, which the shells since Python 3.13 take as one."""
    terminal = Terminal(sys.executable, "-q", *shell)
    written = ""
    try:
        terminal.read_until(">>> ")
        for number, block in enumerate(blocks):
            # The terminal shows the text itself, too, in which the words are apart.
            terminal.paste(f"{block}\nprint('pas' 'ted', '{number}.')\n")
            written += terminal.read_until(f"pasted {number}.")
            terminal.read_until(">>> ")
    finally:
        terminal.close()
    return f"{written}pasted all"


@pytest.mark.usefixtures("_openai")
@pytest.mark.parametrize("page", PASTED, ids=name_of)
def test_the_blocks_of_a_page_can_be_pasted_where_it_says(page: Path):
    """README, tutorial and how-to name `python -m asyncio`, and plain `python` for blocks that start an event loop."""
    blocks = [block.body for block in blocks_of(page) if block.kind == "python"]
    shell = ["-i"] if any("anyio.run(" in block for block in blocks) else ["-m", "asyncio"]
    paste = pasted_into_a_pipe if sys.version_info < (3, 13) else pasted_into_a_terminal
    written = paste(blocks, *shell)
    assert not re.findall(r"^\w*(?:Error|Exception|Interrupt)\b.*|.*\bWarning: .*", written, re.MULTILINE)
    assert "pasted all" in written


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_text_block_is_the_output_of_a_python_block(page: Path):
    """Other listings have another kind, so that every output on a page is checked."""
    pairs = list(pairwise([NO_BLOCK, *blocks_of(page)]))
    assert not [after.line for before, after in pairs if after.kind == "text" and before.kind != "python"]
    assert not [after.line for _, after in pairs if not after.kind], "say what kind it is: python, text, console, …"


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page: of its headings, as mkdocs and GitHub make them, or of its generated entries."""
    if page in GENERATED:
        return {entry for entry in ENTRIES if entry.rpartition(".")[0] == GENERATED[page]}
    prose = FENCE.sub("", page.read_text("utf-8"))
    titles = [re.sub(r"[^\w\s-]", "", found["title"]).strip().lower() for found in HEADING.finditer(prose)]
    return {re.sub(r"[-\s]+", "-", title) for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_between_pages_leads_somewhere(page: Path):
    """Every link points to an existing file and heading, inside the repository."""
    for found in LINK.finditer(FENCE.sub("", page.read_text("utf-8"))):
        target, _, anchor = found["target"].partition("#")
        assert "://" not in target, f"{target}: these pages are read offline too"
        path = (page.parent / target).resolve() if target else page
        assert path in GENERATED or path.exists(), f"{name_of(page)} links to {target}, which is not there"
        assert not anchor or anchor in anchors_of(path), f"{name_of(page)} links to #{anchor}, which {target} has not"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_has_a_slip_of_typesetting(page: Path):
    """No escaped bar, which shows its backslash in code, and no space inside of a decimal number."""
    assert not re.findall(r"\\\||\b\d+\. \d+ ?%", page.read_text("utf-8"))


def test_the_readme_is_short_and_claims_nothing_that_is_not_published():
    """It has less than 1,000 words, and its install lines work in a checkout."""
    text = (ROOT / README).read_text("utf-8")
    assert len(text.split()) < 1_000
    assert not re.findall(r"pip install [\"']?sampling", text)


def test_every_guarantee_has_a_test_and_every_number_in_a_test_a_guarantee():
    """The page of guarantees and the docstrings of the tests name the same points."""
    points = reference.points()
    assert len(points) == len(set(points))
    assert set(points) == set(reference.tests_by_point())


def test_the_picture_of_the_storeys_is_that_of_the_import_contract():
    """`python .ci/draw_storeys.py` updates the picture."""
    picture = (DOCS / "explanation" / "storeys.svg").read_text("utf-8")
    assert draw_storeys.draw() == picture
    named = re.findall(r"<tspan[^>]*>([^<]+)</tspan>", picture)
    assert [module for storey in draw_storeys.storeys() for module in storey] == named


def test_the_map_has_every_folder_and_module():
    """CONTRIBUTING.md has exactly one line for each entry of `sampling/`."""
    rows = re.findall(r"^\| `(\w+(?:\.py|/))` \|", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)
    folder = ROOT / "sampling"
    packages = {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}
    assert sorted(packages | {path.name for path in folder.glob("*.py")}) == sorted(rows)


def test_every_page_is_in_the_navigation():
    """The navigation lists every page except the generated ones, which the build adds."""
    listed = set(re.findall(r"[\w/.-]+\.md", (ROOT / "mkdocs.yml").read_text("utf-8")))
    assert {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} == listed


def test_the_index_of_the_reference_lists_every_generated_page():
    """Each public module has a link, in one of the groups."""
    links = LINK.findall((DOCS / "reference" / "index.md").read_text("utf-8"))
    listed = [DOCS / "reference" / link for link in links if link.startswith("api/")]
    assert sorted(GENERATED) == sorted(listed)


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_every_example_runs_by_itself(example: Path, tmp_path: Path):
    """Each example runs in a new process in another directory, without keys, network or warnings."""
    env = {name: value for name, value in os.environ.items() if "KEY" not in name and "TOKEN" not in name}
    # Not -X dev: there asyncio reports steps that are slow, which a busy machine makes them.
    command = [sys.executable, "-W", "error", str(example)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603
    # Some examples show failures, of which the library warns on stderr.
    unexpected = [line for line in done.stderr.splitlines() if not line.startswith("sampling: ")]
    assert (done.returncode, unexpected) == (0, [])
    assert done.stdout.strip()
    assert not list(tmp_path.iterdir())
