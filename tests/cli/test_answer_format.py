"""Answers as JSON: what the server is told, what is accepted, and what is printed."""

import json
import sys

import pytest
from anyio.from_thread import start_blocking_portal

from sampling.cli._app import run
from sampling.testing.servers import OpenAIServer, Reply

SCHEMA = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
FENCED = 'Here it is:\n```json\n{"total": 7}\n```\nBye.'


@pytest.fixture
def server():
    """A server that answers with JSON in a code fence, and with text around it."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(OpenAIServer(Reply([FENCED]))) as running,
    ):
        yield running


@pytest.fixture
def flags(server, tmp_path, monkeypatch):
    """`flags(name)`: the flags that ask for JSON in one of three ways, in a directory with what they name."""
    monkeypatch.chdir(tmp_path)
    # Another test may have imported a module of this name from its own directory.
    monkeypatch.delitem(sys.modules, "invoices", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "invoices.py").write_text("import attrs\n\n@attrs.frozen\nclass Invoice:\n    total: int\n")
    given = {
        "json": ["--require", "json"],
        "schema": ["--require", "schema:schema.json"],
        "type": ["--type", "invoices:Invoice"],
    }
    return lambda name: [*given[name], "--backend", f"openai:any@{server.url}"]


@pytest.mark.parametrize("name", ["json", "schema", "type"])
def test_the_server_is_told_the_schema_and_a_fence_is_accepted(name, flags, server, capsys):
    """As `Action(text, Model)` does. The answer is printed as plain JSON."""
    assert 0 == run(["sample", "How much?", *flags(name)])
    assert '{"total": 7}\n' == capsys.readouterr().out
    [sent] = [request.json()["response_format"] for request in server.requests]
    assert "json_schema" == sent["type"]
    schema = sent["json_schema"]["schema"]
    assert "object" == schema["type"]
    assert ("json" == name) or {"total"} == set(schema["properties"])


@pytest.mark.parametrize("name", ["json", "schema", "type"])
def test_rows_have_the_parsed_value(name, flags, server, tmp_path, capsys):
    """With a journal and without one. A server that knows no schema is not sent one."""
    (tmp_path / "prompts.txt").write_text("How much?\n")
    arguments = ["map", "prompts.txt", "--text", *flags(name), "--no-constrain"]
    assert 0 == run(arguments)
    assert 0 == run([*arguments, "--out", "a.jsonl"])
    for text in (capsys.readouterr().out, (tmp_path / "a.jsonl").read_text()):
        assert {"total": 7} == json.loads(text)["value"]
    assert [] == [request for request in server.requests if "response_format" in request.json()]


@pytest.mark.parametrize("name", ["json", "schema", "type"])
def test_load_is_made_of_the_same_calls(name, flags, server, capsys):
    """Load tests send the schema and the system message, too."""
    arguments = ["load", "How much?", "--rate", "50", "--requests", "2", "--system", "Be brief."]
    assert 0 == run([*arguments, *flags(name)])
    assert "100" in capsys.readouterr().out
    bodies = [request.json() for request in server.requests]
    assert {"json_schema"} == {body["response_format"]["type"] for body in bodies}
    assert {"system"} == {body["messages"][0]["role"] for body in bodies}


def test_every_reason_is_in_the_row_and_the_most_common_ones_at_the_end(flags, server, tmp_path, capsys):
    """Each attempt has the requirement that failed, and the reason."""
    server.reply = Reply(['{"total": "much"}'])
    (tmp_path / "prompts.txt").write_text("How much?\nAnd now?\n")
    assert 1 == run(["map", "prompts.txt", "--text", *flags("schema"), "--depth", "2"])
    out, err = capsys.readouterr()
    [first, second] = [json.loads(line)["failures"] for line in out.splitlines()]
    reason = "at /total: must be of type integer, got 'much'"
    expected = {"requirement": "is JSON that fits the schema", "reason": reason}
    assert [{"iteration": 1, **expected}, {"iteration": 2, **expected}] == first == second
    assert f"2 × is JSON that fits the schema: {reason}" in err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--type", "invoices"], "--type must be MODULE:CLASS"),
        (["--type", "invoicse:Invoice"], "--type: there is no module 'invoicse', neither installed nor in "),
        (["--type", "invoices:Invoce"], "--type: invoices has no Invoce. Did you mean Invoice?"),
        (["--type", "invoices:attrs"], "must be a pydantic model, an attrs class"),
        (["--type", "broken:x"], "--type: broken can't be imported: ZeroDivisionError"),
        (["--type", "script:x"], "--type: script can't be imported: SystemExit: 3"),
        (["--type", "invoices:Invoice", "--require", "schema:schema.json"], "contradict each other"),
        (["--require", "schema:broken.py"], "--require schema: 'broken.py' is not JSON"),
        (["--require", "schema:list.json"], "must be a JSON schema, which is an object"),
    ],
)
def test_a_format_that_cannot_be_used_is_one_line(flags, server, tmp_path, capsys, arguments, complaint):
    """Exit code 2, and nothing is sent."""
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "script.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "list.json").write_text("[]\n")
    assert 2 == run(["sample", "How much?", *arguments, *flags("json")[2:]])
    err = capsys.readouterr().err
    assert 1 == err.count("\n")
    assert complaint in err
    assert [] == server.requests
