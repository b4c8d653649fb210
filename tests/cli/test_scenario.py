"""`sampling load scenario.toml`: several populations from a file."""

import json
import tomllib

import jsonschema
import pytest

from sampling.cli._app import run
from sampling.cli._scenario import read_scenario, scenario_schema
from sampling.load import ClosedLoop, OpenLoop, PopulationsReport, read_report

SCENARIO = """
seed = 3
virtual = true
backend = "simulated:0.9"
duration = "30s"
slo = "p95=5s"

[[population]]
name = "chat"
users = 4
think-time = 1
questions = ["Name a river.", "Name a city."]

[[population]]
name = "batch"
rate = 2
arrivals = "poisson"
depth = 2
max-in-flight = 64
slo = "p95=4s,error=2%"

[population.operations.short]
weight = 3
questions = ["Say yes."]
max-tokens = 16

[population.operations.long]
questions = ["Tell a story."]
"""


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


def test_each_population_has_what_the_file_says(scenario):
    """C8: keys at the top apply to all, and those of a population win."""
    found = read_scenario(scenario)
    chat, batch = found.populations
    assert (3, True) == (found.seed, found.virtual)
    assert ClosedLoop(users=4, think_time_s=1.0, horizon_s=30) == chat.traffic.profile()
    assert OpenLoop(rate=2, duration_s=30, arrivals="poisson", max_in_flight=64) == batch.traffic.profile()
    assert (("Name a river.", "Name a city."), 1, 5.0) == (chat.workload.questions, chat.workload.depth, chat.slo.p95_s)
    assert (4.0, 0.02) == (batch.slo.p95_s, batch.slo.error_rate)
    assert {"short": (3.0, 2, 16), "long": (1.0, 2, None)} == {
        name: (weight, each.depth, each.max_tokens) for name, (weight, each) in batch.operations.items()
    }


def test_a_scenario_is_run_and_reported_one_by_one_and_together(scenario, tmp_path, capsys):
    """C8, R14: with the exit code of the worst verdict, and flags for what is about this run alone."""
    out = tmp_path / "r.json"
    assert 0 == run(["load", str(scenario), "--out", str(out), "--samples"])
    shown = capsys.readouterr().out
    assert ["chat", "batch", "total"] == [line.split()[0] for line in shown.splitlines()[1:4]]
    assert "PASS: every population with an SLO held" in shown
    report = read_report(out)
    assert isinstance(report, PopulationsReport)
    assert (3, 60) == (report.seed, report.populations["batch"].scheduled)
    assert {"long", "short"} == set(report.populations["batch"].operations)
    assert "simulated:0.9" == report.populations["chat"].about["backend"]
    assert 0 == run(["report", str(out), "--out", str(tmp_path / "r.html")])
    assert "<h2>batch</h2>" in (tmp_path / "r.html").read_text("utf-8")
    scenario.write_text(SCENARIO.replace("p95=5s", "p95=1s"), encoding="utf-8")
    assert 1 == run(["load", str(scenario)])
    assert "TRIP: chat: p95=" in capsys.readouterr().out


def test_the_seed_may_be_given_as_a_flag(scenario, tmp_path):
    """R9: two runs with one seed are identical to the byte, and another seed is other traffic."""
    texts = []
    for number, seed in enumerate(((), (), ("--seed", "9"))):
        out = tmp_path / f"{number}.json"
        run(["load", str(scenario), *seed, "--out", str(out)])
        texts.append(out.read_text("utf-8"))
    assert texts[0] == texts[1] != texts[2]


def test_populations_load_one_server(tmp_path, capsys):
    """C8: a simulated server with few slots is slow for both, because they share it."""
    alone = 'virtual = true\nbackend = "simulated:1"\nduration = "60s"\nrate = 4\n[[population]]\nname = "a"\n'
    path, out = tmp_path / "s.toml", tmp_path / "r.json"
    latencies = []
    for text in (alone, f'{alone}[[population]]\nname = "b"\nrate = 40\n'):
        path.write_text(text, encoding="utf-8")
        run(["load", str(path), "--out", str(out), "--force"])
        latencies.append(read_report(out).populations["a"].latency.p50)
    assert latencies[1] > 2 * latencies[0]


def test_a_dry_run_shows_every_population_and_sends_nothing(scenario, capsys):
    """A dry run of a scenario works as one of flags."""
    assert 0 == run(["load", str(scenario), "--dry-run"])
    shown = capsys.readouterr().out
    assert "chat: rejection, 1 deep × 1 wide, 2 questions, backend simulated:0.9" in shown
    assert "60 requests over 30s, open loop" in shown
    assert "at most 120 requests" in shown


def test_questions_traces_and_outputs_are_beside_the_scenario(tmp_path, monkeypatch, capsys):
    """Paths of a file are relative to it, wherever the command runs."""
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "q.txt").write_text("Name a river.\nName a city.\n", encoding="utf-8")
    (folder / "t.csv").write_text("0\n0.5\n2\n", encoding="utf-8")
    (folder / "s.toml").write_text(
        'virtual = true\nbackend = "simulated:1"\nout = ["r.csv"]\n'
        '[[population]]\nname = "a"\ntrace = "t.csv"\nquestions = "q.txt"\n',
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    assert 0 == run(["load", "there/s.toml"])
    assert (folder / "r.csv").exists()
    assert "3 due = 0 dropped + 3 sent" in capsys.readouterr().out


PROMPTS = """
virtual = true
backend = "simulated:1"
duration = "30s"
prompt-tokens = 40
prompt-tokens-stdev = 8.5

[[population]]
name = "chat"
users = 2
turns = 3
shared-prefix-tokens = 10
prefixes = 2

[[population]]
name = "given"
rate = 1
questions = ["Name a river."]

[[population]]
name = "batch"
rate = 1
prompt-tokens-max = 500

[population.operations.long]
prompt-tokens = 400

[population.operations.given]
questions = ["Name a city."]
"""


def test_a_scenario_generates_prompts(tmp_path, capsys):
    """C8, R14: from keys at the top, of a population or of an operation. The nearest one wins."""
    path, out = tmp_path / "s.toml", tmp_path / "r.json"
    path.write_text(PROMPTS, encoding="utf-8")
    jsonschema.validate(tomllib.loads(PROMPTS), scenario_schema())
    assert 0 == run(["load", str(path), "--out", str(out)])
    found = {name: each.about for name, each in read_report(out).populations.items()}
    normal = "random prompts of 40 tokens (stdev 8.5, at least 1)"
    assert (f"{normal}, 2 shared prefixes of 10 tokens", 3) == (found["chat"]["questions"], found["chat"]["turns"])
    assert found["given"]["questions"].startswith("1, ")
    batch = {name: each["questions"] for name, each in found["batch"]["operations"].items()}
    assert "random prompts of 400 tokens (stdev 8.5, from 1 to 500)" == batch["long"]
    assert batch["given"].startswith("1, ")
    capsys.readouterr()
    assert 0 == run(["load", str(path), "--dry-run"])
    assert "chat: rejection, 1 deep × 1 wide, random prompts of 40 tokens" in capsys.readouterr().out


def test_questions_at_the_top_give_way_to_generated_prompts(tmp_path):
    """C8: as a rate at the top gives way to users."""
    path = tmp_path / "s.toml"
    path.write_text(f'questions = ["Why?"]\n{POPULATION}prompt-tokens = 9\n', encoding="utf-8")
    (population,) = read_scenario(path).populations
    assert ((), 9) == (population.workload.questions, population.workload.prompt_tokens)


POPULATION = '[[population]]\nname = "a"\nrate = 1\nduration = 1\nbackend = "simulated"\n'


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("rate = ", "s.toml is not TOML"),
        ("rate = 1", "a scenario has at least one population"),
        ('[[population]]\nrate = 1\nduration = "1s"', "population 1 needs a name"),
        (POPULATION * 2, "two populations are named 'a'"),
        (
            f"{POPULATION}thinktime = 1",
            "population 'a': a population has no key 'thinktime': did you mean 'think-time'?",
        ),
        (f"seeds = 1\n{POPULATION}", "the scenario has no key 'seeds': did you mean 'seed'?"),
        (f"{POPULATION}users = 2", "population 'a': rate and users contradict each other"),
        (f"{POPULATION}think-time = 1", "population 'a': think-time is for users"),
        (f"{POPULATION}warmup = true", "population 'a': warmup must be a TOML number or string, got True"),
        (f"{POPULATION}depth = 0", "population 'a': "),
        (f"{POPULATION}require = [1]", "require must be an array of strings"),
        (f'{POPULATION}arrivals = "random"', "arrivals must be one of constant, poisson, burst, got 'random'"),
        (f'{POPULATION}slo = "p95"', "population 'a': an SLO is written as metric=limit"),
        (
            f"{POPULATION}[population.operations.x]\nweight = 0",
            "the weights of a mix must add up to something positive",
        ),
        (
            f"{POPULATION}[population.operations.x]\nweight = -1",
            "s.toml: population 'a': the weight of 'x' must be >= 0, got -1",
        ),
        (
            f'{POPULATION}slo = "x.p95=1s,z.p95=1s"\n[population.operations.x]\n[population.operations.y]\n',
            "population 'a': the SLO limits 'z', but the operations are 'x', 'y'",
        ),
        (f'{POPULATION}slo = "z.p95=1s"', "population 'a': the SLO limits 'z', but there are no operations"),
        (f"{POPULATION}[population.operations.x]\nrate = 1", "operation 'x' has no key 'rate'"),
        (f'{POPULATION}questions = "none.txt"', "population 'a': questions: can't read"),
        (
            f'{POPULATION}questions = ["Why?"]\nprompt-tokens = 9',
            "population 'a': questions and prompt-tokens contradict each other",
        ),
        (
            f'questions = ["Why?"]\nprompt-tokens = 9\n{POPULATION}',
            "population 'a': questions and prompt-tokens contradict each other",
        ),
        (f"{POPULATION}questions = []", "population 'a': questions is empty: there is nothing to ask"),
        (f"{POPULATION}prompt-tokens-stdev = 9", "population 'a': prompt-tokens-stdev needs prompt-tokens, the mean"),
        (f"{POPULATION}prompt-tokens = 0", "population 'a': prompt-tokens must be >= 1, got 0"),
        (f"{POPULATION}prompt-tokens = 9.5", "prompt-tokens must be a TOML integer, got 9.5"),
        (
            f"{POPULATION}prompt-tokens = 9\nprompt-tokens-stdev = 1\nprompt-tokens-min = 9\nprompt-tokens-max = 8",
            "population 'a': prompt-tokens-max must be >= 9, got 8",
        ),
        (f"{POPULATION}turns = 2", "population 'a': turns is for users: only users have conversations"),
        (f"{POPULATION}[population.operations.x]\nturns = 2", "population 'a': turns is for users"),
        (f'{POPULATION}workload = "a:b"\nprompt-tokens = 9', "leave out backend, prompt-tokens"),
        (f"virtual = true\nworkers = 2\n{POPULATION}", "workers 2 would start 2 servers of their own"),
    ],
)
def test_a_mistake_in_a_scenario_is_one_line_that_names_it(text, complaint, tmp_path, capsys):
    """R5, R16: exit code 2, and nothing is sent."""
    path = tmp_path / "s.toml"
    path.write_text(text, encoding="utf-8")
    assert 2 == run(["load", str(path)])
    out, err = capsys.readouterr()
    assert "" == out
    assert complaint in err
    assert "Traceback" not in err


def test_flags_that_belong_into_the_file_are_refused(scenario, capsys):
    """R5: by name."""
    assert 2 == run(["load", str(scenario), "--rate", "5", "--think-time", "1s"])
    assert "the scenario says what is sent: write --rate, --think-time into the file" in capsys.readouterr().err
    assert 2 == run(["load", str(scenario), "Name a river."])
    assert "a scenario has its own questions" in capsys.readouterr().err
    assert 2 == run(["load", "missing.toml"])
    assert "can't read the scenario 'missing.toml'" in capsys.readouterr().err


def test_the_schema_accepts_scenarios_and_refuses_mistakes(capsys):
    """C8: for editors, on stdout."""
    assert 0 == run(["load", "--scenario-schema"])
    schema = json.loads(capsys.readouterr().out)
    assert scenario_schema() == schema
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(tomllib.loads(SCENARIO), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(tomllib.loads(f"{POPULATION}thinktime = 1"), schema)


def test_a_scenario_can_say_whatever_a_flag_can(capsys):
    """C8: the keys are the flags, apart from those that are about the command."""
    import re

    run(["load", "--help"])
    flags = set(re.findall(r"^ {2}(?:-\w, )?--([\w-]+)", capsys.readouterr().out, re.MULTILINE))
    about_the_command = {"help", "dry-run", "scenario-schema", "header", "live-port"}
    assert flags - about_the_command == set(scenario_schema()["properties"]) - {"population"}
