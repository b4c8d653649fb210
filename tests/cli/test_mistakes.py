"""Mistakes on the command line get one line that says what to type instead, and the documented exit code."""

import os
import re
import sys
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal

from sampling.cli._app import run
from sampling.cli._files import check_output
from sampling.testing.servers import OpenAIServer, Reply


def complaint(capsys, *arguments: object) -> tuple[int, str]:
    """Run a command that must fail, and return its exit code and its one line."""
    code = run(list(map(str, arguments)))
    out, err = capsys.readouterr()
    assert ("", 1) == (out, err.count("\n")), err
    assert err.startswith("sampling: ")
    return code, err.removeprefix("sampling: ").rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--require", "wrods:1..3"], "Did you mean words:1..3?"),
        (["--require", "jsn"], "Did you mean json?"),
        (["--backend", "opnai:gpt-5-mini"], "Did you mean openai:gpt-5-mini?"),
        (["--backend", "openai"], "Did you mean openai:MODEL?"),
        (["--backend", "gemini:"], "Did you mean gemini:MODEL?"),
        (["--backend", "models/small.gguf"], "Did you mean llama:models/small.gguf?"),
        (["--backend", "gpt-5-mini"], "Did you mean openai:gpt-5-mini?"),
        (["--backend", "claude-haiku-4-5"], "Did you mean anthropic:claude-haiku-4-5?"),
        (["--backend", "http://127.0.0.1:8000/v1"], "Did you mean openai:MODEL@http://127.0.0.1:8000/v1?"),
        (["--strategy", "rejecton"], "Did you mean rejection?"),
        (["--type", "json.JSONDecoder"], "--type must be MODULE:CLASS, such as shop:Invoice"),
        (["--depht", "3"], "--depth"),
        (["there"], "put the question in quotes"),
    ],
)
def test_a_typo_gets_the_right_spelling(arguments, expected, capsys):
    """The line names the flag and what was probably meant. Nothing is sent."""
    code, line = complaint(capsys, "sample", "hi", *arguments)
    assert 2 == code
    assert expected in line
    assert not line.startswith("Invalid value: ")


@pytest.mark.parametrize("wrong", ["zzz", "", "a:b:c"])
def test_what_is_like_nothing_gets_the_whole_list(wrong, capsys):
    """A guess that is far off would mislead."""
    for flag in ("--backend", "--strategy", "--require"):
        code, line = complaint(capsys, "sample", "hi", flag, wrong)
        assert 2 == code
        assert f"{flag} must be" in line
        assert "Did you mean" not in line


@pytest.mark.parametrize("question", ["", " \n"])
def test_an_empty_question_is_refused(question, capsys):
    """Most likely a variable of the shell that is not set. A model would make something up, for money."""
    assert (2, "the question is empty: give one in quotes, or - to read it from stdin") == complaint(
        capsys, "sample", question, "--backend", "simulated"
    )


def test_a_class_that_is_missing_is_not_compared_with_functions(tmp_path, monkeypatch, capsys):
    """`--type` suggests a class, because nothing else is accepted."""
    (tmp_path / "typo_shop.py").write_text("class Invoice:\n    pass\n\n\ndef invoic():\n    pass\n")
    monkeypatch.chdir(tmp_path)
    _, line = complaint(capsys, "sample", "hi", "--type", "typo_shop:Invoic")
    assert line.endswith("typo_shop has no Invoic. Did you mean Invoice?")


@pytest.fixture
def server():
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(OpenAIServer()) as running:
        yield running


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (401, "Incorrect API key", "the server answered 401: Incorrect API key. No key was sent: set OPENAI_API_KEY"),
        (404, "The model `m` does not exist", "does not exist. Compare the model in --backend"),
        (500, "oops", "the server answered 500: oops. The problem is on the server"),
        (500, "oops!", "the server answered 500: oops! The problem is on the server"),
    ],
)
def test_an_error_of_a_server_and_its_fix_are_two_sentences(status, message, expected, server, monkeypatch, capsys):
    """Exit code 1, because something was sent. No name of a Python argument is in the line."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    server.reply = Reply(status=status, error={"error": {"message": message}})
    code, line = complaint(capsys, "sample", "hi", "--retries", "0", "--backend", f"openai:m@{server.url}")
    assert 1 == code
    assert expected in line
    assert not re.search(r"\w=|True|None|\(none\)", line)


def test_a_key_that_was_withheld_is_named_with_the_flag_that_sends_it(server, monkeypatch, capsys):
    """The key of the environment goes to the provider's own address, unless the user says otherwise."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary")
    server.reply = Reply(status=401, error={"error": {"message": "Who are you?"}})
    _, line = complaint(capsys, "sample", "hi", "--backend", f"openai:m@{server.url}")
    assert line.endswith(
        "Who are you? No key was sent (OPENAI_API_KEY is not sent to the URL of --backend): add --send-env-key, or "
        "use --header."
    )


def test_a_file_of_another_shape_is_told_apart(tmp_path, capsys):
    """A JSON array is not JSON lines. The advice has the command that makes them."""
    path = tmp_path / "prompts.json"
    path.write_text('[{"prompt": "a"}, {"prompt": "b"}]')
    code = run(["map", str(path), "--backend", "simulated"])
    assert 2 == code
    assert f"jq -c '.[]' {path} > prompts.jsonl" in capsys.readouterr().err


def test_devices_may_be_outputs_for_everyone():
    """Only root may write to /dev, and everyone to /dev/null and /dev/stdout: a device is not replaced."""
    assert Path("/dev/null") == check_output("--out", Path("/dev/null"), replace=False, protected={})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to everything")
def test_a_device_that_refuses_is_named(tmp_path):
    """A pipe without permission is refused before the run."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o400)
    with pytest.raises(ValueError, match="can't be written to"):
        check_output("--out", pipe, replace=False, protected={})


def test_the_demo_does_not_advise_a_flag_that_it_does_not_have(monkeypatch, capsys):
    """Its model needs llama.cpp, and there is no --backend to choose another."""
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    code, line = complaint(capsys, "demo", "--questions", "1")
    assert (2, "LlamaBackend needs the package 'xllamacpp': pip install \"sampling[llama]\"") == (code, line)


def test_a_missing_package_is_bad_configuration(monkeypatch, capsys):
    """R16: the line has the command that installs it, and the exit code is 2."""
    monkeypatch.setitem(sys.modules, "regex", None)
    code, line = complaint(capsys, "sample", "hi", "--backend", "simulated", "--require", "regex:x")
    assert 2 == code
    assert 'pip install "sampling[regex]"' in line
