"""The pytest plugin, in runs of its own."""

import json
from importlib.metadata import entry_points

import pytest

from sampling.testing import pytest_plugin

pytest_plugins = ["pytester"]

CASSETTE_TEST = """
import anyio
from sampling import RejectionSamplingStrategy
from sampling.testing import ScriptedBackend

def test_it(cassette):
    backend = cassette(ScriptedBackend({answers!r}))
    result = RejectionSamplingStrategy(loop_budget=2).sample_sync("q", None, backend, [lambda text: text == "yes"])
    assert result.success
    assert len(result.slices) == 2
"""


@pytest.fixture
def run_pytest(pytester, monkeypatch):
    """Run pytest with this plugin alone."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(*arguments):
        return pytester.runpytest_inprocess("-p", pytest_plugin.__name__, *arguments)

    return run


def write_test(pytester, answers):
    pytester.makepyfile(test_one=CASSETTE_TEST.format(answers=answers))


def test_a_cassette_is_recorded_once_and_then_replayed(pytester, run_pytest):
    """Without the recording, the test says how to make it. With it, nothing is asked."""
    write_test(pytester, ["no", "yes"])
    missing = run_pytest()
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["*test_it.jsonl does not exist. Record it with: pytest --record-cassettes*"])
    run_pytest("--record-cassettes").assert_outcomes(passed=1)
    recorded = pytester.path / "cassettes" / "test_one" / "test_it.jsonl"
    assert 2 == sum("generation" in json.loads(line) for line in recorded.read_text().splitlines())
    write_test(pytester, [])  # a backend without answers
    run_pytest().assert_outcomes(passed=1)
    run_pytest("--record-cassettes").assert_outcomes(passed=1)


def test_a_failed_recording_keeps_the_old_cassette(pytester, run_pytest):
    """A failed recording keeps the old cassette and leaves no temporary file."""
    write_test(pytester, ["no", "yes"])
    run_pytest("--record-cassettes").assert_outcomes(passed=1)
    [recorded] = (pytester.path / "cassettes" / "test_one").iterdir()
    before = recorded.read_bytes()
    write_test(pytester, ["no", "no"])
    run_pytest("--record-cassettes=all").assert_outcomes(failed=1)
    assert [recorded] == list(recorded.parent.iterdir())
    assert before == recorded.read_bytes()


def test_pass_rates_are_in_the_summary(pytester, run_pytest):
    """The summary has the rates of passed and of failed tests."""
    pytester.makepyfile(
        test_rates="""
import pytest
from sampling import RejectionSamplingStrategy
from sampling.testing import assert_samples_sync

@pytest.mark.parametrize("answer", ["yes", "no"])
def test_rate(answer):
    async def model(request):
        return answer
    assert_samples_sync(RejectionSamplingStrategy(), "q", None, model, [lambda text: text == "yes"])
"""
    )
    result = run_pytest()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*= pass rates =*", "*test_rate[[]yes]: *passed: 100%*", "*[[]no]: 0 of *"])


def test_pytest_finds_it_where_the_library_is_installed():
    """By its entry point, so that `-p no:sampling` turns it off."""
    [plugin] = entry_points(group="pytest11", name="sampling")
    assert pytest_plugin is plugin.load()
