"""Servers: names of models, headers that are never shown, and `sampling doctor`."""

import json
import os

import pytest
from anyio.from_thread import start_blocking_portal

from sampling.backends.anthropic import AnthropicBackend
from sampling.backends.openai import OpenAIBackend
from sampling.cli._app import run
from sampling.cli._headers import Headers, header_values, without_header_values
from sampling.cli._specs import parse_backend, split_model
from sampling.testing.servers import OpenAIServer, Reply

SECRET = "s3cr3t-team-value"  # noqa: S105 - not a real one


@pytest.fixture
def server():
    """A server that speaks OpenAI's protocol."""
    reply = Reply(["a", " b", ' {"city": "Rome"}'])
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(OpenAIServer(reply)) as running:
        yield running


# Specs.


@pytest.mark.parametrize(
    ("rest", "model", "url"),
    [
        ("gpt-5-mini", "gpt-5-mini", None),
        ("@cf/meta/llama-3", "@cf/meta/llama-3", None),
        ("claude-3-5@20240620", "claude-3-5@20240620", None),
        ("qwen@v1.5", "qwen@v1.5", None),
        ("@cf/meta/llama@http://127.0.0.1:8000/v1", "@cf/meta/llama", "http://127.0.0.1:8000/v1"),
        ("a@b@https://host/v1", "a@b", "https://host/v1"),
        ("m@ftp://host", "m", "ftp://host"),
    ],
)
def test_a_model_may_have_an_at_in_its_name(rest, model, url):
    """The URL begins at the @ that a scheme follows."""
    assert (model, url) == split_model(rest)


@pytest.mark.parametrize("host", ["127.0.0.1:8000/v1", "localhost", "example.com/v1", "gpu-box:8000"])
def test_a_url_without_a_scheme_is_not_sent_to_openai_as_a_model(host):
    """The prompt would go there, too."""
    with pytest.raises(ValueError, match="write the URL with http:// or https://"):
        split_model(f"qwen3@{host}")


def test_an_address_that_is_empty_is_refused():
    """A variable that is not set must not send the prompts to the provider."""
    with pytest.raises(ValueError, match="there is no URL after the @ of 'm@'"):
        split_model("m@")


def test_http_elsewhere_needs_a_flag():
    """The error names the flag `--allow-http`."""
    spec = "openai:qwen3@http://gpu.example.com/v1"
    assert isinstance(parse_backend(spec, allow_http=True), OpenAIBackend)
    with pytest.raises(ValueError, match="allow_http"):
        parse_backend(spec)


def test_anthropic_is_a_backend(monkeypatch):
    """Its key comes from its own variable, and goes to a URL only if the user says so."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    backend = parse_backend("anthropic:claude-x")
    assert isinstance(backend, AnthropicBackend)
    assert (backend.model, backend.base_url) == ("claude-x", "https://api.anthropic.com")
    elsewhere = parse_backend("anthropic:claude-x@https://llm.example.com")
    assert "withheld: ANTHROPIC_API_KEY" in repr(elsewhere)
    assert "key from the environment" in repr(
        parse_backend("anthropic:claude-x@https://llm.example.com", send_env_key=True)
    )


def test_anthropic_without_a_key_names_its_variable(monkeypatch, capsys):
    """The error names the variable, and the flag for another server."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    assert 2 == run(["sample", "Hi", "--backend", "anthropic:claude-x"])
    assert "set ANTHROPIC_API_KEY, or give another server with --backend anthropic:MODEL@URL" in capsys.readouterr().err


@pytest.mark.parametrize("flag", [["--allow-http"], ["--send-env-key"], ["--header", f"X-Team: {SECRET}"]])
@pytest.mark.parametrize("command", [["sample", "Hi"], ["load", "--rate", "1", "--requests", "1"]])
def test_a_flag_about_connections_needs_a_connection(command, flag, capsys):
    """It is not silently ignored."""
    assert 2 == run([*command, "--backend", "simulated", *flag])
    err = capsys.readouterr().err
    assert f"{flag[0]} is for --backend openai:…" in err
    assert SECRET not in err


def test_errors_name_flags(capsys):
    """Messages and hints name flags instead of Python arguments."""
    assert 2 == run(["sample", "Hi", "--backend", "openai:qwen3@http://gpu.example.com/v1"])
    assert "Add --allow-http if the network is your own" in capsys.readouterr().err
    assert 1 == run(["sample", "Hi", "--backend", "openai:qwen3@http://127.0.0.1:9/v1", "--retries", "0"])
    err = capsys.readouterr().err
    assert "Check the URL of --backend" in err
    assert "base_url" not in err


# Headers.


@pytest.mark.parametrize("workers", [None, "1", "2"])
def test_headers_are_sent_and_never_shown(server, capsys, tmp_path, workers, monkeypatch):
    """This process and its workers send them. No report and no environment variable has them afterwards."""
    monkeypatch.setenv("SAMPLING_HEADERS", "X-From: env\n")
    flags = ["--backend", f"openai:any@{server.url}", "--header", f"X-Team: {SECRET}", "--header", "X-Two:b"]
    out = tmp_path / "r.json"
    load = ["load", "Hi", "--rate", "50", "--requests", "4", "--workers", workers, "--out", str(out)]
    assert 0 == run(["sample", "Hi", *flags] if workers is None else [*load, *flags])
    assert server.requests
    for request in server.requests:
        assert (SECRET, "b", "env") == tuple(request.headers[name] for name in ("x-team", "x-two", "x-from"))
    shown = "".join(capsys.readouterr()) + (out.read_text() if out.exists() else "")
    assert SECRET not in shown
    assert "X-From: env\n" == os.environ["SAMPLING_HEADERS"]


@pytest.mark.parametrize(
    "arguments",
    [["--header", SECRET], ["--header", f"X Team: {SECRET}"], ["--header", "X-Team:", SECRET], ["--header", "X-Team:"]],
)
def test_a_header_that_cannot_be_read_is_not_shown_either(server, capsys, arguments):
    """Also if it was not quoted, so that its value is an argument of its own."""
    assert 2 == run(["sample", "Hi", "--backend", f"openai:any@{server.url}", *arguments])
    err = capsys.readouterr().err
    assert SECRET not in err
    assert 1 == err.count("\n")
    assert [] == server.requests


def test_the_values_of_headers_are_masked_in_a_command():
    """The command that says how to resume shows no header values."""
    given = ["map", "p", "--header", f"X-Team: {SECRET}", f"--header=X-Key:{SECRET}", "--resume"]
    assert ["map", "p", "--header", "X-Team: ***", "--header=X-Key: ***", "--resume"] == without_header_values(given)
    assert [SECRET, SECRET] == header_values(given)
    assert SECRET not in repr(Headers({"x-team": SECRET}))


# doctor.


def findings(capsys) -> dict[str, dict]:
    return {one["check"]: one for one in json.loads(capsys.readouterr().out)["checks"]}


def test_a_healthy_server_passes_every_check(server, capsys):
    """Exit code 0, and one line for each check."""
    server.reply = lambda request: _answer(request.json())
    assert 0 == run(["doctor", "--backend", f"openai:any@{server.url}", "--json"])
    found = findings(capsys)
    assert {"ok"} == {one["status"] for one in found.values()}, found
    checks = ["python", "packages", "reachable", "answers", "usage", "streaming", "cancellation", "max_tokens"]
    assert [*checks, "schema", "limits"] == list(found)
    assert 0 < server.disconnects
    assert 0 == run(["doctor", "--backend", f"openai:any@{server.url}"])
    assert f"ok    reachable     {server.url}\n" in capsys.readouterr().out


def _answer(body: dict) -> Reply:
    if "response_format" in body:
        return Reply(['{"city": "Rome"}'])
    limit = body["max_tokens"]
    return Reply(["word "] * min(limit, 8), endless=limit > 1_000, interval_s=0.01)


def test_a_server_with_weaknesses_gets_warnings_that_say_what_to_do(server, capsys):
    """No usage, no streaming, no schema: it can be used, so the exit code is 0."""

    def reply(request) -> Reply:
        if "response_format" in request.json():
            return Reply(status=400, error={"error": {"message": "unknown field response_format"}})
        return Reply(["a long answer in one piece that is far too long"], usage={})

    server.reply = reply
    assert 0 == run(["doctor", "--backend", f"openai:any@{server.url}", "--json"])
    found = findings(capsys)
    weak = {name for name, one in found.items() if one["status"] == "warn"}
    assert {"usage", "streaming", "max_tokens", "schema"} <= weak
    assert all(found[name]["fix"] for name in weak)
    assert "--no-constrain" in found["schema"]["fix"]


@pytest.mark.parametrize(
    ("reply", "check", "fix"),
    [
        (None, "reachable", "Check the URL of --backend"),
        (Reply(status=401, error={"error": {"message": "no"}}), "answers", "--send-env-key"),
        (Reply(status=429, error={"error": {"message": "no"}}), "answers", "wait, and try again"),
        (Reply([" "]), "answers", "Check the model"),
        (Reply(["x"], endless=True, interval_s=0.01), "answers", "raise --timeout"),
    ],
)
def test_a_server_that_cannot_be_used_fails_with_what_to_fix(server, capsys, reply, check, fix):
    """The exit code is 1, and the checks that need an answer are left out."""
    server.reply = reply or Reply()
    url = "http://127.0.0.1:9/v1" if reply is None else server.url
    assert 1 == run(["doctor", "--backend", f"openai:any@{url}", "--json", "--timeout", "1"])
    found = findings(capsys)
    assert ("fail", check) == (found[check]["status"], list(found)[-1])
    assert fix in found[check]["fix"]


def test_the_embedded_model_is_checked_by_default(capsys):
    """A real model, with real cancellation."""
    assert 0 == run(["doctor"])
    out = capsys.readouterr().out
    assert "ok    answers " in out
    assert "fail" not in out
