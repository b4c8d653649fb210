"""`sampling map --batch`: half the price, through the batch API of a provider."""

import json
from functools import partial

import pytest

import sampling.cli.map as command
from sampling.cli._app import run
from sampling.fanout import BatchEngine
from sampling.testing.batch_servers import BatchServer


@pytest.fixture
def server(monkeypatch):
    """A server that repeats prompts, and an engine that does not wait long."""
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
    fast = partial(BatchEngine, linger_s=0.05, poll_interval_s=0.05, max_poll_interval_s=0.1)
    monkeypatch.setattr(command, "BatchEngine", fast)
    with BatchServer(lambda request: f"echo {request.prompt}") as server:
        yield server


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"key": f"k{n}", "prompt": f"say {n}"}) + "\n" for n in range(5)))
    return path


def arguments(prompts, server, api, *more):
    backend = f"{api}:model@{server.url}"
    return ["map", str(prompts), "--backend", backend, "--send-env-key", "--batch", *map(str, more)]


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_a_file_is_answered_in_a_batch(server, prompts, tmp_path, capsys, api):
    """F21: one batch, one line for each answer, and the price of a batch."""
    out = tmp_path / "answers.jsonl"
    assert 0 == run(arguments(prompts, server, api, "--out", out, "--price", "10/100"))
    assert [f"echo say {n}" for n in range(5)] == [json.loads(line)["text"] for line in out.read_text().splitlines()]
    shown = capsys.readouterr().err
    assert "batch 1 (" in shown
    assert "5 of 5 done" in shown
    # Two words of a prompt and three of an answer.
    assert f"cost {5 * (2 * 10 + 3 * 100) / 1e6 / 2:g}" in shown
    assert 5 == server.billed.total()


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_each_state_of_a_batch_is_printed_once(server, prompts, capsys, api):
    """F21: not by the display and by a log line."""
    server.latency_s = 0.2
    assert 0 == run(arguments(prompts, server, api))
    about_batches = [line for line in capsys.readouterr().err.splitlines() if "batch" in line]
    ended = "completed" if api == "openai" else "ended"
    assert ["created, 0 of 5 done", f"{ended}, 5 of 5 done"] == [
        line.partition(": ")[2] for line in about_batches if "in_progress" not in line
    ]
    assert all(line.startswith("batch 1 (") for line in about_batches)


def test_a_dry_run_shows_batch_prices(server, prompts, capsys):
    """F21: half of --price, and nothing is sent."""
    shared = ["--max-tokens", 100, "--price", "1/2", "--dry-run"]
    assert 0 == run(arguments(prompts, server, "openai", *shared))
    batch = capsys.readouterr().out
    online = [argument for argument in arguments(prompts, server, "openai", *shared) if argument != "--batch"]
    assert 0 == run(online)
    assert cost(capsys.readouterr().out) == pytest.approx(2 * cost(batch), abs=2e-4)
    assert "A request in a batch costs 0.5 of --price." in batch
    assert not server.calls


def cost(shown):
    return float(next(line.split()[1] for line in shown.splitlines() if line.strip().startswith("cost")))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--backend", "simulated"], "--batch needs --backend openai:MODEL or anthropic:MODEL"),
        (["--actors", "2"], "--batch and --actors exclude each other"),
        (["--budget-tokens", "5"], "needs --max-tokens"),
    ],
)
def test_flags_that_do_not_go_together(server, prompts, capsys, more, message):
    """F21: refused before anything is sent."""
    assert 2 == run(arguments(prompts, server, "openai", *more))
    assert message in " ".join(capsys.readouterr().err.split())
    assert not server.calls
