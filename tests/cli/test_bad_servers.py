"""The table of bad servers through the command line, in virtual time: never a PASS, and never the client's fault."""

import pytest

from sampling.cli import capacity, load
from sampling.cli._app import run
from sampling.load import Arrival, CapacityAnswer, LoadReport, read_report
from tests.load.bad_servers import BAD_SERVERS, BadServer, Server

OWN = ("--virtual", "--workload", f"{__name__}:serve")
chosen: BadServer = BAD_SERVERS[0]
servers: list[Server] = []


async def serve(arrival: Arrival) -> object:
    """Pass a request on to the chosen server, which is a new one for each run."""
    if not arrival.index:
        servers[:] = [chosen.make()]
    return await servers[0](arrival)


@pytest.fixture(autouse=True)
def _virtual(monkeypatch):
    """Let the commands take the servers for simulated ones, so that their time is virtual."""
    for module in (load, capacity):
        monkeypatch.setattr(module, "check_workers", lambda *_args, **_kwargs: None)


LIMITS = ("--warmup", "1s", "--drain", "20s")


@pytest.mark.parametrize("bad", BAD_SERVERS, ids=lambda bad: bad.name)
def test_a_load_run_of_a_bad_server_does_not_hold(bad, capsys, tmp_path, monkeypatch):
    """R3, R5: exit code 1, TRIP in the table and in the file, and no word that the load generator was the limit."""
    monkeypatch.setattr(f"{__name__}.chosen", bad)
    out = tmp_path / "r.json"
    traffic = ("--rate", "50", "--duration", "25s", "--max-in-flight", str(bad.max_in_flight), "--slo", str(bad.slo))
    assert 1 == run(["load", *OWN, *traffic, *LIMITS, "-o", str(out)])
    shown = capsys.readouterr().out
    report = read_report(out)
    assert isinstance(report, LoadReport)
    assert "TRIP" == report.verdict
    assert f"\nTRIP: {report.reasons[0]}" in shown
    assert "PASS" not in shown
    assert "client-limited" not in shown + out.read_text("utf-8")


@pytest.mark.parametrize("bad", [bad for bad in BAD_SERVERS if not bad.serves_users][::6], ids=lambda bad: bad.name)
def test_a_search_of_a_bad_server_finds_no_number_of_users(bad, capsys, tmp_path, monkeypatch):
    """R3, R5: exit code 1, a trip, none passed, and no word that the load generator was the limit."""
    monkeypatch.setattr(f"{__name__}.chosen", bad)
    out = tmp_path / "c.json"
    search = ("--axis", "users", "--steps", "60", "--think-time", "250ms", "--hold", "25s", "--cooldown", "0s")
    once = ("--no-preflight", "--no-confirm", "--slo", str(bad.slo))
    assert 1 == run(["capacity", *OWN, *search, *once, *LIMITS, "-o", str(out)])
    shown = capsys.readouterr()
    answer = read_report(out)
    assert isinstance(answer, CapacityAnswer)
    assert ["TRIP"] == [step.verdict for step in answer.steps]
    assert "none passed: " in shown.out
    assert "PASS" not in shown.out + shown.err
    assert "client-limited" not in shown.out + shown.err + out.read_text("utf-8")
