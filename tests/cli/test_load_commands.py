"""`sampling load`, `capacity`, `plan` and `report`: what they print and write, and what Ctrl-C does to them."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from anyio.from_thread import start_blocking_portal

from sampling import Message
from sampling.backends.simulated import SimulatedBackend
from sampling.cli import capacity, load, plan, report
from sampling.cli._app import run
from sampling.cli._workload import read_questions
from sampling.load import Arrival, CapacityAnswer, CapacitySettings, ClosedLoop, LoadReport, OpenLoop, Plan, read_report
from sampling.testing.servers import OpenAIServer, Reply

VIRTUAL = ("--backend", "simulated:0.8", "--virtual")
LOAD = ("load", *VIRTUAL, "--rate", "2", "--duration", "60s")
SEARCH = ("capacity", *VIRTUAL, "--steps", "1,2,4,8", "--slo", "p95=3s", "--warmup", "5s", "--cooldown", "1s")
GENERATED = ("--prompt-tokens", "40", "--prompt-tokens-stdev", "8")
PLAN = ("plan", "--pass-rate", "60%", "--ttft", "100ms", "--per-token", "10ms", "--rate", "1", "--requests", "200")


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-X", "dev", "-W", "error", "-m", "sampling", *map(str, arguments)]


@pytest.fixture
def server():
    """A server that speaks OpenAI's protocol, and answers at once."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(OpenAIServer(lambda _: Reply(["yes"]))) as running,
    ):
        yield running


ARGUMENTS = {
    field.name for kind in (OpenLoop, ClosedLoop, CapacitySettings) for field in attrs.fields(kind) if "_" in field.name
}

# What goes wrong, in one line.

CONTRADICTIONS = [
    (["load"], "give the traffic: --rate 50 (open loop), --users 20 (closed loop), or --trace FILE"),
    (["load", "--rate", "5", "--users", "2"], "--rate and --users contradict each other"),
    (["load", "--rate", "5", "--trace", "t.csv"], "--rate and --trace contradict each other"),
    (["load", "--rate", "5"], "--rate needs an end: add --duration 30s, or --requests 1000"),
    (["load", "--users", "5"], "--users needs an end: add --duration 30s, or --requests 1000"),
    (["load", "--rate", "0", "--duration", "1s"], "rate must be > 0, got 0"),
    (["load", "--rate", "-1", "--duration", "1s"], "--rate must be a number such as 50 or 1.5k, got '-1'"),
    (["load", "--rate", "fast", "--duration", "1s"], "--rate must be a number such as 50 or 1.5k, got 'fast'"),
    (["load", "--rate", "1e999", "--duration", "1s"], "--rate is too large"),
    (["load", "--users", "0", "--requests", "1"], "users must be >= 1, got 0"),
    (["load", "--rate", "5", "--duration", "soon"], "--duration must be a time such as 250ms, 2s or 1m, got 'soon'"),
    (["load", "--rate", "5", "--duration", "0s"], "--duration must be > 0"),
    (["load", "--rate", "5", "--requests", "-1"], "requests must be >= 0, got -1"),
    (["load", "--users", "5", "--requests", "9", "--to-rate", "9"], "--to-rate is for --rate"),
    (["load", "--users", "5", "--requests", "9", "--arrivals", "poisson"], "--arrivals is for --rate"),
    (["load", "--users", "5", "--requests", "9", "--max-in-flight", "9"], "--max-in-flight is for --rate"),
    (["load", "--rate", "5", "--requests", "9", "--think-time", "1s"], "--think-time is for --users"),
    (["load", "--rate", "5", "--requests", "9", "--on-error", "cancel"], "--on-error is for --users"),
    (["load", "--users", "5", "--requests", "9", "--on-error", "x"], "--on-error must be 'continue' or 'cancel'"),
    (["load", "--rate", "5", "--requests", "9", "--burst", "3"], "--burst needs --arrivals burst"),
    (["load", "--rate", "5", "--requests", "9", "--arrivals", "bursts"], "arrivals must be one of constant, poisson"),
    (
        ["load", "--rate", "5", "--requests", "9", "--to-rate", "50"],
        "--to-rate needs --duration",
    ),
    (["load", "--trace", "nowhere.csv"], "--trace: can't read 'nowhere.csv': No such file or directory"),
    (["load", "--rate", "5", "--requests", "9", "--slo", "p96=2s"], "no such SLO metric: 'p96'; there are p50, p90"),
    (["load", "--rate", "5", "--requests", "9", "--slo", "p95"], "an SLO is written as metric=limit, such as p95=2s"),
    (["load", "--rate", "5", "--requests", "9", "--slo", "p95=2s,p95=3s"], "p95 is limited twice"),
    (["load", "--rate", "5", "--requests", "9", "--slo", ""], "an SLO needs at least one limit"),
    (["load", "--rate", "5", "--requests", "9", "--slo", "chat.p95=2s"], "the SLO limits 'chat', but there are no"),
    (["load", "--users", "99999999999999999999", "--requests", "9"], "--users must be <= 10,000,000"),
    (["load", "--rate", "5", "--requests", "9", "--out", "r.pdf"], "a report is written as .csv, .html, .json"),
    (["load", "--rate", "5", "--requests", "9", "--out", "no/dir/r.json"], "there is no directory 'no/dir'"),
    (["load", "--rate", "5", "--requests", "9", "--samples"], "--samples needs a .json to write them to"),
    (["load", "--rate", "5", "--requests", "9", "--workers", "0"], "--workers"),
    (["load", "--rate", "5", "--requests", "9", "--workers", "2"], "--workers 2 would start 2 servers of their own"),
    (["load", "--rate", "5", "--requests", "9", "--virtual"], "--virtual needs --backend simulated"),
    (["load", *VIRTUAL, "--rate", "5", "--requests", "9", "--workers", "2"], "2 servers of their own"),
    (
        ["load", "--rate", "5", "--requests", "9", "--workload", "here"],
        "--workload must be MODULE:NAME",
    ),
    (["load", "--rate", "5", "--requests", "9", "--workload", "a:b", "--depth", "2"], "leave out --depth"),
    (["load", "--rate", "5", "--requests", "9", "--backend", "gpt"], "--backend must be anthropic:MODEL"),
    (["load", "--rate", "5", "--requests", "9", "--require", "jsn"], "--require must be"),
    (["load", "why?", "--rate", "5", "--requests", "9", "--questions", "q.txt"], "contradict each other"),
    (["load", "--rate", "5", "--requests", "9", "--questions", "nowhere.txt"], "--questions: can't read 'nowhere.txt'"),
    (
        ["load", "why?", "--rate", "5", "--requests", "9", "--prompt-tokens", "9"],
        "questions and --prompt-tokens contradict each other: prompts are given, or generated. Keep one of them",
    ),
    (
        ["load", "--rate", "5", "--requests", "9", "--prompt-tokens", "9", "--questions", "q.txt"],
        "questions and --prompt-tokens contradict each other",
    ),
    (["load", "--rate", "5", "--requests", "9", "--prompt-tokens", "0"], "--prompt-tokens must be >= 1, got 0"),
    (
        ["load", "--rate", "5", "--requests", "9", "--prompt-tokens", "99999999"],
        "--prompt-tokens must be <= 10,000,000",
    ),
    (
        ["load", "--rate", "5", "--requests", "9", "--prompt-tokens-stdev", "9"],
        "--prompt-tokens-stdev needs --prompt-tokens, the mean",
    ),
    (
        ["load", "--rate", "5", "--requests", "9", "--prompt-tokens-min", "9", "--prefixes", "2"],
        "--prompt-tokens-min, --prefixes need --prompt-tokens, the mean",
    ),
    (
        ["load", "--rate", "5", "--requests", "9", "--prompt-tokens", "9", "--prompt-tokens-max", "12"],
        "--prompt-tokens-max needs --prompt-tokens-stdev: without it all prompts have the same length",
    ),
    (
        [
            "load",
            "--rate",
            "5",
            "--requests",
            "9",
            *GENERATED,
            "--prompt-tokens-min",
            "20",
            "--prompt-tokens-max",
            "10",
        ],
        "--prompt-tokens-max must be >= 20, got 10",
    ),
    (
        ["load", "--rate", "5", "--requests", "9", *GENERATED, "--prompt-tokens-max", "10"],
        "--prompt-tokens is the mean, so it must be between --prompt-tokens-min and --prompt-tokens-max, got 40",
    ),
    (
        ["load", "--rate", "5", "--requests", "9", "--prompt-tokens", "9", "--prompt-tokens-stdev", "-1"],
        "--prompt-tokens-stdev must be >= 0, got -1",
    ),
    (
        ["load", "--rate", "5", "--requests", "9", "--prompt-tokens", "9", "--prompt-tokens-stdev", "nan"],
        "--prompt-tokens-stdev must be a finite number",
    ),
    (
        ["load", "--rate", "5", "--requests", "9", "--prompt-tokens", "9", "--shared-prefix-tokens", "9"],
        "--shared-prefix-tokens must be less than --prompt-tokens, which counts the prefix too, got 9 and 9",
    ),
    (
        ["load", "--rate", "5", "--requests", "9", "--prompt-tokens", "9", "--prefixes", "2"],
        "--prefixes needs --shared-prefix-tokens",
    ),
    (
        ["load", "--rate", "5", "--requests", "9", *GENERATED, "--require", "arithmetic"],
        "--require arithmetic checks the sum in a given question: leave it out, or --prompt-tokens",
    ),
    (
        ["load", "--rate", "5", "--requests", "9", "--turns", "3"],
        "--turns is for --users: only users have conversations",
    ),
    (["load", "--users", "5", "--requests", "9", "--turns", "0"], "--turns must be >= 1, got 0"),
    (
        ["load", "1+1?", "1+2?", "--users", "5", "--requests", "9", "--turns", "2", "--require", "arithmetic"],
        "--require arithmetic checks the sum in a given question: leave it out, or --turns",
    ),
    (
        ["load", "--users", "5", "--requests", "9", "--workload", "a:b", *GENERATED, "--turns", "2"],
        "leave out --prompt-tokens, --prompt-tokens-stdev, --turns",
    ),
    (["capacity", "why?", "--slo", "p95=2s", "--steps", "1", *GENERATED], "questions and --prompt-tokens contradict"),
    (["capacity", "--slo", "p95=2s", "--steps", "1", "--turns", "3"], "--turns is for --axis users: only users have"),
    (["capacity", "--slo", "p95=2s"], "Missing option '--steps'"),
    (["capacity", "--steps", "1,2"], "Missing option '--slo'"),
    (["capacity", "--slo", "p95=2s", "--steps", "20,10"], "steps must ascend: 10 comes after 20"),
    (["capacity", "--slo", "p95=2s", "--steps", ""], "steps"),
    (["capacity", "--slo", "p95=2s", "--steps", "0,1"], "every step of --steps must be finite and > 0, got 0"),
    (["capacity", "--slo", "p95=2s", "--steps", "1,-2"], "every step of --steps must be finite and > 0, got -2"),
    (["capacity", "--slo", "latency=2s", "--steps", "1,2"], "no such SLO metric: 'latency'"),
    (["capacity", "--slo", "chat.p95=2s", "--steps", "1,2"], "the SLO limits 'chat', but there are no operations"),
    (["capacity", "--slo", "p95=2s", "--steps", "1", "--hold", "0s"], "--hold must be > 0"),
    (
        ["capacity", "--slo", "p95=2s", "--steps", "1", "--think-time", "1s"],
        "are for --axis users",
    ),
    (["capacity", "--slo", "p95=2s", "--steps", "1", "--timeout", "0s"], "--timeout must be > 0"),
    (["load", "--rate", "5", "--requests", "9", "--timeout", "0s"], "--timeout must be > 0"),
    (["capacity", "--slo", "p95=2s", "--steps", "1", "--axis", "threads"], "--axis"),
    (["capacity", "--slo", "p95=2s", "--steps", "1.5", "--axis", "users"], "1.5"),
    (["capacity", "--slo", "p95=2s", "--steps", "1,99999999k", "--axis", "users"], "got 99,999,999,000"),
    (["capacity", "--slo", "p95=2s", "--steps", "1", "--rate-tolerance", "100%"], "--rate-tolerance is a share"),
    (["capacity", "--slo", "p95=2s", "--steps", "1", "--samples", "-o", "a.json"], "--samples is for `sampling load`"),
    (["plan", "--rate", "1"], "Missing option '--slo'"),
    (["plan", "--rate", "1", "--slo", "p95=2s"], "--pass-rate, --ttft, --per-token missing; or give a recorded run"),
    ([*PLAN, "--slo", "p95=2s", "--price", "2"], "--price must be IN/OUT, such as 0.15/0.60"),
    ([*PLAN, "--slo", "p95=2s", "--depths", "0..2"], "--depths must be numbers from 1 to 64"),
    ([*PLAN, "--slo", "p95=2s", "--depths", "4..2"], "--depths must be numbers from 1 to 64"),
    ([*PLAN, "--slo", "p95=2s", "--depths", "1..99999999999999"], "--depths must be numbers from 1 to 64"),
    ([*PLAN, "--slo", "p95=2s", "--depths", "1,99,2"], "--depths must be numbers from 1 to 64"),
    ([*PLAN, "--slo", "p95=2s", "--breadths", "few"], "--breadths must be numbers"),
    ([*PLAN[:2], "170%", *PLAN[3:], "--slo", "p95=2s"], "--pass-rate is a share such as 60% or 0.6"),
    ([*PLAN, "--slo", "p95=2s", "--like", "nowhere.json"], "--ttft and --like contradict each other"),
    (["plan", "--rate", "1", "--slo", "p95=2s", "--like", "nowhere.json"], "can't read 'nowhere.json'"),
    ([*PLAN, "--slo", "p95=2s", "--out", "p.html"], "written as .json or .csv"),
    (["report"], "Missing argument"),
    (["report", "nowhere.json"], "can't read 'nowhere.json': No such file or directory"),
]


@pytest.mark.parametrize(("arguments", "complaint"), CONTRADICTIONS, ids=lambda value: " ".join(value)[:60])
def test_every_contradiction_of_flags_is_one_line_that_says_what_to_change(
    arguments, complaint, capsys, tmp_path, monkeypatch
):
    """R5: exit code 2, nothing on the output, nothing sent, nothing written, and no traceback."""
    monkeypatch.chdir(tmp_path)
    assert 2 == run(arguments)
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err[:10]) == ("", 1, "sampling: ")
    assert complaint in err
    assert set() == set(re.findall(r"[a-z_]+", err)) & ARGUMENTS, "flags are named, not the arguments of Python"
    assert [] == list(tmp_path.iterdir())


# Help.


@pytest.mark.parametrize("name", ["load", "capacity", "plan", "report"])
def test_help_explains_every_flag_and_has_examples(name, capsys):
    """R8: every flag is documented."""
    assert 0 == run([name, "--help"])
    shown = capsys.readouterr().out
    options = shown.split("Options:\n")[1].split("Examples:")[0].split("--help")[0]
    entries = re.split(r"\n(?= {2}-)", options.rstrip(" -\n"))
    assert len(entries) >= 4
    for entry in entries:
        words = re.sub(r"\[[^\]]*\]|<[^>]*>|--?[\w/-]+|[A-Z_:/]{3,}", "", entry).split()
        assert len(words) >= 3, entry
    assert shown.count(f"  sampling {name} ") >= 3


@pytest.mark.parametrize("name", ["load", "capacity", "plan", "report"])
def test_the_reference_has_every_flag(name, capsys):
    """R8: in the table of its command."""
    run([name, "--help"])
    flags = set(re.findall(r"^ {2}(?:-\w, )?(--[\w-]+)", capsys.readouterr().out, re.MULTILINE)) - {"--help"}
    pages = (Path(__file__).parents[2] / "docs" / "reference" / "command-line.md").read_text("utf-8")
    section = pages.split(f"## `sampling {name}`")[1].split("\n## ")[0]
    assert set() == {flag for flag in flags if f"{flag}`" not in section and f"{flag} /" not in section}


@pytest.mark.parametrize("module", [load, capacity, plan, report], ids=lambda module: module.__name__)
def test_the_examples_of_the_help_are_flags_that_there_are(module, capsys, tmp_path, monkeypatch):
    """Every example of the help passes --dry-run, apart from files that it names."""
    monkeypatch.chdir(tmp_path)
    for line in re.findall(r"^  (?:.*[|] )?sampling (.+)$", module.EXAMPLES, re.MULTILINE):
        arguments = line.partition(" ||")[0].split()
        code = run([*arguments, "--dry-run"])
        complaint = capsys.readouterr().err
        missing = ("can't read", "stdin is not JSON", "no module 'shop'")
        assert code == 0 or any(problem in complaint for problem in missing), (line, complaint)


# What is found.


def test_a_load_run_prints_a_table_and_writes_what_it_is_told_to(capsys, tmp_path):
    """As JSON, CSV and a page, by the names of the files."""
    outs = [tmp_path / f"r{ending}" for ending in (".json", ".csv", ".html")]
    assert 0 == run([*LOAD, *(part for path in outs for part in ("--out", str(path)))])
    out, err = capsys.readouterr()
    assert "120 due = 0 dropped + 120 sent" in out
    assert [f"wrote {path}" for path in outs] == err.splitlines()
    found = read_report(outs[0])
    assert isinstance(found, LoadReport)
    assert 120 == found.admitted
    assert outs[2].read_text("utf-8").startswith("<!doctype html>")


def test_the_same_seed_makes_the_same_report(tmp_path):
    """R9: to the byte, in virtual time."""
    texts = []
    for number, seed in enumerate((7, 7, 8)):
        path = tmp_path / f"{number}.json"
        run([*LOAD, "--arrivals", "poisson", "--seed", str(seed), "-o", str(path)])
        texts.append(path.read_text("utf-8"))
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(("slo", "code"), [("p95=2s", 0), ("p95=1ms", 1), ("validity=99%", 1)])
def test_the_exit_code_of_a_load_run_says_whether_the_slo_held(slo, code, capsys):
    """R5, for one step."""
    assert code == run([*LOAD, "--slo", slo])
    assert ("PASS" if code == 0 else "TRIP") in capsys.readouterr().out


def test_users_think_and_wait(capsys):
    """C1: ten users that think for a second, for a minute."""
    assert 0 == run(["load", *VIRTUAL, "--users", "10", "--think-time", "1s", "--duration", "1m"])
    assert "closed loop, 10 users" in capsys.readouterr().out


def test_a_trace_is_played_back(tmp_path, capsys):
    """O1: the instants of the file, and no others."""
    (tmp_path / "t.csv").write_text("seconds\n100\n100.5\n102\n", encoding="utf-8")
    assert 0 == run(["load", *VIRTUAL, "--trace", str(tmp_path / "t.csv")])
    assert "3 due = 0 dropped + 3 sent" in capsys.readouterr().out


@pytest.mark.parametrize(("slo", "code"), [("p95=3s", 0), ("p95=1ms", 1)])
def test_a_search_prints_its_steps_and_its_answer(slo, code, capsys, tmp_path):
    """R5, R8: the exit code is 0 if any step passed, else 1, and each step's row is on disk when it ends."""
    files = {ending: tmp_path / f"c{ending}" for ending in (".json", ".csv", ".html")}
    arguments = [*SEARCH[:-5], slo, *SEARCH[-4:], "--journal", str(tmp_path / "j"), "--no-preflight"]
    for path in files.values():
        arguments += ["-o", str(path)]
    assert code == run(arguments)
    out, err = capsys.readouterr()
    answer = read_report(files[".json"])
    assert isinstance(answer, CapacityAnswer)
    assert str(answer) in out
    assert [f"{step.target_rate:g}: {step.verdict}" for step in answer.steps] == re.findall(r"^\d+: [A-Z]+", err, re.M)
    assert len(answer.steps) + 1 == len(files[".csv"].read_text("utf-8").splitlines())
    assert len(answer.steps) + 1 == len((tmp_path / "j").read_text("utf-8").splitlines())


@pytest.mark.parametrize("flag", ["--trace", "--questions"])
def test_a_file_that_is_not_utf_8_is_named(tmp_path, monkeypatch, capsys, flag):
    """O13: a file of another encoding is an error with the flag and the file, and nothing is sent."""
    monkeypatch.chdir(tmp_path)
    Path("of-windows.txt").write_bytes("1\n2\n".encode("utf-16"))
    traffic = () if flag == "--trace" else ("--rate", "5", "--requests", "9")
    assert 2 == run(["load", *VIRTUAL, *traffic, flag, "of-windows.txt"])
    assert f"{flag}: can't read 'of-windows.txt': it is not UTF-8" in capsys.readouterr().err


def test_a_byte_order_mark_is_not_part_of_a_question(tmp_path):
    """O13: the mark that some editors write is skipped."""
    (tmp_path / "q.txt").write_text("Why?\n", encoding="utf-8-sig")
    assert ("Why?",) == read_questions(None, tmp_path / "q.txt")


def test_a_search_goes_on_with_its_journal(tmp_path, capsys):
    """R8: what is in the journal is not run again."""
    arguments = [*SEARCH, "--journal", str(tmp_path / "j")]
    run(arguments)
    assert capsys.readouterr().err
    run(arguments)
    out, err = capsys.readouterr()
    assert ("", True) == (err, "holds 4 per second" in out)


def test_the_journal_of_another_server_is_refused(tmp_path, capsys):
    """R14: the same flags with another backend do not print the old answer."""
    arguments = [*SEARCH, "--journal", str(tmp_path / "j")]
    run(arguments)
    capsys.readouterr()
    assert 2 == run(["simulated:0.7" if word == "simulated:0.8" else word for word in arguments])
    out, err = capsys.readouterr()
    assert "" == out
    assert "is of another search" in err
    assert "simulated:0.8" in err
    assert "simulated:0.7" in err


def test_a_dry_run_of_a_large_run_only_computes(capsys):
    """It counts nothing one by one: these are 3.6 million million arrivals."""
    assert 0 == run(["load", *VIRTUAL, "--rate", "1M", "--duration", "1000h", "--dry-run"])
    assert "3,600,000,000,000 requests over 3600000s" in capsys.readouterr().out


def test_a_dry_run_says_how_much_would_be_sent(capsys):
    """A dry run prints the number of requests and sends nothing."""
    assert 0 == run([*LOAD, "--depth", "3", "--breadth", "2", "--dry-run"])
    assert "120 requests over 60s" in (out := capsys.readouterr().out)
    assert "at most 720 requests" in out
    assert 0 == run([*SEARCH, "--dry-run"])
    assert "4, 8 per second, 36s each" in capsys.readouterr().out
    assert 0 == run([*PLAN, "--slo", "p95=2s", "--dry-run"])
    assert "would simulate 16 pairs" in capsys.readouterr().out


# Generated prompts.


@pytest.fixture
def sent(monkeypatch):
    """The messages of every request to a simulated server."""
    messages: list[tuple[Message, ...]] = []
    stream = SimulatedBackend.stream

    async def record(self, request, receive):
        messages.append(tuple(request.messages))
        return await stream(self, request, receive)

    monkeypatch.setattr(SimulatedBackend, "stream", record)
    return messages


def words(messages: list[tuple[Message, ...]]) -> list[list[str]]:
    return [each[-1].text.split() for each in messages]


def test_prompts_of_random_lengths_are_sent(sent):
    """C8: with the mean, the limits and the prefixes of the flags."""
    limits = ("--prompt-tokens-min", "30", "--prompt-tokens-max", "50")
    prefixes = ("--shared-prefix-tokens", "20", "--prefixes", "3")
    assert 0 == run([*LOAD, *GENERATED, *limits, *prefixes])
    lengths = [len(each) for each in words(sent)]
    assert (120, 30, 50) == (len(lengths), min(lengths), max(lengths))
    assert 40 == pytest.approx(sum(lengths) / len(lengths), abs=2)
    assert 3 == len({tuple(each[:20]) for each in words(sent)})
    assert 120 == len({tuple(each) for each in words(sent)})


@pytest.mark.parametrize("arguments", [LOAD, (*SEARCH, "--no-confirm")], ids=["load", "capacity"])
def test_the_same_seed_sends_the_same_prompts(arguments, sent):
    """C6, R9: two runs send the same, and another seed sends others."""
    runs = []
    for seed in ("7", "7", "8"):
        run([*arguments, *GENERATED, "--seed", seed])
        runs.append(sorted(map(" ".join, words(sent))))
        sent.clear()
    assert runs[0] == runs[1] != runs[2]
    assert len(runs[0]) == len({*runs[0]}), (
        "no step and no warm-up sends a prompt again, which a server may have cached"
    )


@pytest.mark.parametrize("question", [GENERATED, ("Why?", "When?")], ids=["generated", "given"])
def test_users_have_conversations_of_several_turns(question, sent):
    """C7, C8: each user goes on in its own, and begins anew after its turns."""
    assert 0 == run(["load", *question, *VIRTUAL, "--users", "1", "--requests", "7", "--turns", "3", "--system", "Hi."])
    assert [2, 4, 6, 2, 4, 6, 2] == [len(each) for each in sent]
    assert sent[1][:2] == sent[0]
    assert {"system"} == {each[0].role for each in sent}
    sent.clear()
    assert 0 == run([*SEARCH, "--axis", "users", "--turns", "2", *question])
    assert {1, 3} == {len(each) for each in sent}


def test_answers_to_generated_prompts_are_checked(capsys):
    """C8: by the requirements that apply to any answer, and by the simulated server's own."""
    assert 0 == run([*LOAD, *GENERATED, "--slo", "validity=60%"])
    assert 1 == run([*LOAD, *GENERATED, "--slo", "validity=60%", "--require", "one-of:yes"])
    assert "validity rate=0% < 60%" in capsys.readouterr().out


def test_a_report_names_the_generated_prompts_and_the_turns(tmp_path, capsys):
    """R14: in every file, and a comparison with other prompts notes it."""
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    users = ("load", *VIRTUAL, "--users", "2", "--duration", "60s", "--turns", "3")
    run([*users, *GENERATED, "-o", str(paths[0])])
    assert "questions random prompts of 40 tokens (stdev 8, at least 1)" in (out := capsys.readouterr().out)
    assert "turns 3" in out
    run([*users, "--prompt-tokens", "40", "-o", str(paths[1])])
    capsys.readouterr()
    run(["report", str(paths[1]), "--against", str(paths[0])])
    assert "questions was 'random prompts of 40 tokens (stdev 8, at least 1)' and is" in capsys.readouterr().out


def test_the_journal_of_other_prompts_is_refused(tmp_path, capsys):
    """R14: longer prompts are another search."""
    arguments = [*SEARCH, "--prompt-tokens", "40", "--journal", str(tmp_path / "j")]
    run(arguments)
    capsys.readouterr()
    assert 2 == run(["50" if word == "40" else word for word in arguments])
    out, err = capsys.readouterr()
    assert ("", True) == (out, "is of another search" in err)
    assert "random prompts of 40 tokens" in err
    assert "random prompts of 50 tokens" in err


def test_a_dry_run_counts_the_tokens_of_prompts_by_their_mean(capsys):
    """And says what it leaves out."""
    assert 0 == run([*LOAD, *GENERATED, "--depth", "3", "--dry-run"])
    assert "1 wide, random prompts of 40 tokens (stdev 8, at least 1), backend" in (out := capsys.readouterr().out)
    assert "at most 360 requests with about 14,400 tokens of prompts, without judges" in out
    users = ("--users", "2", "--requests", "10", "--turns", "3")
    assert 0 == run(["load", *VIRTUAL, *users, *GENERATED, "--dry-run"])
    assert "10 requests with about 400 tokens of prompts, without judges and earlier turns" in capsys.readouterr().out
    assert 0 == run([*SEARCH, *GENERATED, "--dry-run"])
    assert "at most 525 to the backend with about 21,000 tokens of prompts" in capsys.readouterr().out


# Plans.


@pytest.mark.parametrize(("slo", "code"), [("validity=80%", 0), ("p50=1ms", 1)])
def test_a_plan_shows_all_pairs_and_the_best(slo, code, capsys, tmp_path):
    """The exit code says whether there is one."""
    path = tmp_path / "plan.json"
    assert code == run([*PLAN, "--slo", slo, "--price", "0.25/2", "-o", str(path), "-o", str(tmp_path / "plan.csv")])
    out = capsys.readouterr().out
    assert "4×4" in out
    found = read_report(path)
    assert isinstance(found, Plan)
    assert (str(found), code) == (out.splitlines()[-1], found.exit_code)


def test_a_plan_can_be_made_for_a_server_like_one_that_was_measured(capsys, tmp_path):
    """`sampling load --samples` records, `sampling plan --like` calibrates."""
    for name, rate in (("idle", "1"), ("busy", "6")):
        arguments = ["load", *VIRTUAL, "--rate", rate, "--requests", "200", "--arrivals", "poisson", "--samples"]
        assert 0 == run([*arguments, "-o", str(tmp_path / f"{name}.json")])
    likes = [part for name in ("idle", "busy") for part in ("--like", str(tmp_path / f"{name}.json"))]
    capsys.readouterr()
    assert 0 == run(["plan", *likes, "--rate", "1", "--slo", "validity=90%", "--requests", "200"])
    assert "server: 8 slots, first token after 200 ms" in capsys.readouterr().out


# Reports.


def test_a_report_is_shown_turned_into_a_page_and_compared(capsys, tmp_path):
    """With the exit code 1 if something got worse, and 0 if not."""
    paths = {rate: tmp_path / f"{rate}.json" for rate in (2, 6)}
    for rate, path in paths.items():
        run(["load", *VIRTUAL, "--rate", str(rate), "--duration", "60s", "-o", str(path)])
    capsys.readouterr()
    assert 0 == run(["report", str(paths[2]), "--out", str(tmp_path / "r.html")])
    assert "latency (from due)" in capsys.readouterr().out
    assert (tmp_path / "r.html").exists()
    assert 1 == run(["report", str(paths[6]), "--against", str(paths[2])])
    assert "worse: p50" in capsys.readouterr().out
    assert 0 == run(["report", str(paths[2]), "--against", str(paths[2])])
    assert "the same, within 5%" in capsys.readouterr().out


def test_reports_of_different_models_are_not_compared(capsys, tmp_path):
    """O8: one line, and exit code 2."""
    run([*LOAD, "-o", str(tmp_path / "open.json")])
    run(["load", *VIRTUAL, "--users", "2", "--requests", "50", "-o", str(tmp_path / "closed.json")])
    capsys.readouterr()
    assert 2 == run(["report", str(tmp_path / "open.json"), "--against", str(tmp_path / "closed.json")])
    assert "can't compare a report of the closed loop with one of the open loop" in capsys.readouterr().err


# The real command, against a real server, with real signals.


@pytest.mark.parametrize("workers", [1, 2])
def test_a_real_server_is_loaded_by_real_processes(workers, server, tmp_path):
    """The report counts what the server received, from one process or several."""
    out = tmp_path / "r.json"
    backend = f"openai:any@{server.url}"
    done = subprocess.run(  # noqa: S603
        command(
            "load",
            "Yes?",
            "--backend",
            backend,
            "--rate",
            "40",
            "--requests",
            "40",
            "--require",
            "words:1..",
            "-o",
            out,
        ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (0, True) == (done.returncode, "40 due = 0 dropped + 40 sent" in done.stdout), done.stderr
    assert len(server.requests) == json.loads(out.read_text("utf-8"))["admitted"] == 40


@pytest.mark.parametrize(("name", "number"), [("load", signal.SIGINT), ("capacity", signal.SIGTERM)])
def test_a_signal_still_writes_what_was_gathered(name, number, server, tmp_path):
    """R4, R8, R16: after a real signal the report is complete and says so, and the exit code is 130 or 143."""
    out = tmp_path / "r.json"
    backend = ("--backend", f"openai:any@{server.url}", "-o", out, "-o", tmp_path / "r.html")
    arguments = {
        "load": ("load", "Yes?", "--rate", "50", "--duration", "10m", *backend),
        "capacity": ("capacity", "Yes?", "--steps", "20,40,60", "--slo", "p95=30s", "--warmup", "0s", "--hold", "2s",
                     "--cooldown", "0s", "--rate-tolerance", "99%", *backend),
    }[name]  # fmt: skip
    with subprocess.Popen(  # noqa: S603
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    ) as process:
        while len(server.requests) < (20 if name == "load" else 60):
            assert process.poll() is None, process.communicate()
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=60)
    assert f"{number.name}: stopping. Results so far are kept" in stderr
    assert "Traceback" not in stderr
    found = read_report(out)
    assert isinstance(found, LoadReport | CapacityAnswer)
    assert found.interrupted
    assert "interrupted" in stdout
    assert (tmp_path / "r.html").exists()
    if isinstance(found, CapacityAnswer):
        assert [step.target_rate for step in found.steps] == [20]
    else:
        assert 0 < found.admitted < 30_000
    assert 128 + number == process.returncode


@pytest.mark.usefixtures("default_hangup")
@pytest.mark.parametrize("name", ["load", "capacity"])
def test_a_hangup_while_the_report_is_written_is_ignored(name, tmp_path):
    """R16: the system and the shell may both send SIGHUP. The second one must not cost the report."""
    program = """
import os, signal
from sampling.cli import _outputs, main

write_report = _outputs.write_report

def hang_up(*arguments, **settings):
    os.kill(os.getpid(), signal.SIGHUP)
    write_report(*arguments, **settings)

_outputs.write_report = hang_up
main()
"""
    traffic = {
        "load": ("--rate", "10", "--duration", "2s"),
        "capacity": ("--steps", "5", "--slo", "p50=9s", "--warmup", "0s", "--hold", "2s"),
    }[name]
    out = tmp_path / "r.json"
    arguments = (name, "Yes?", "--backend", "simulated", "--virtual", *traffic, "-o", str(out))
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert (0, True) == (done.returncode, out.exists()), done.stderr


async def quits_later(arrival: Arrival) -> None:
    """End the program in the middle of a run, or in the second step of a search."""
    if arrival.intended_s > 1 and current_rate(arrival) != 5:
        raise SystemExit(3)


def current_rate(arrival: Arrival) -> float:
    return arrival.index / arrival.intended_s


@pytest.mark.parametrize("name", ["load", "capacity"])
def test_a_workload_that_ends_the_program_loses_nothing(name, tmp_path):
    """O13: what was measured until then is written, and the exit code is the workload's."""
    out = tmp_path / "r.json"
    traffic = {
        "load": ("--rate", "10", "--duration", "30s"),
        "capacity": ("--steps", "5,10", "--slo", "p50=1s", "--warmup", "0s", "--hold", "4s", "--no-preflight"),
    }[name]
    workload = f"{__name__}:quits_later"
    done = subprocess.run(  # noqa: S603
        command(name, "--workload", workload, *traffic, "-o", out),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert (3, True) == (done.returncode, out.exists()), done.stderr
    found = read_report(out)
    assert found.interrupted
    assert (found.admitted > 5) if isinstance(found, LoadReport) else [5] == [step.target_rate for step in found.steps]


def test_a_server_that_is_not_there_is_found_out_before_a_long_search(tmp_path):
    """R10: one line with advice, exit code 1, and no step."""
    done = subprocess.run(  # noqa: S603
        command(
            "capacity", "Yes?", "--steps", "1,2", "--slo", "p95=1s", "--backend", "openai:any@http://127.0.0.1:9/v1"
        ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert (1, "") == (done.returncode, done.stdout)
    assert "the first request failed" in done.stderr
    assert "check the address" in done.stderr
    assert "Traceback" not in done.stderr
    assert [] == list(Path(tmp_path).iterdir())
