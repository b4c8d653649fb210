"""F17: journals of earlier formats."""

import hashlib
import shutil
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sampling import Action, MultiTurnStrategy, Requirement, fan_out
from sampling._serialization.messages import canonical
from sampling.errors import JournalMismatch
from sampling.fanout.journal import _description, _fingerprint
from sampling.fanout.journal._code import PYTHON
from sampling.fanout.journal._fingerprint import earlier_item_digests, fingerprint_of, item_digest
from tests.faults.journals import answering


class Patient(MultiTurnStrategy):
    """A strategy of a user."""

    def repair(self, history):
        """Ask again."""
        return super().repair(history)


def is_short(text):
    """Is short."""
    return len(text) < 9


def parse(text):
    """Read a number."""
    return int(text)


ITEMS = ["q0", Action("q1", str.strip), "q2"]


@pytest.fixture
def path(tmp_path):
    """Return a copy of a journal that format 6 wrote, with Python 3.11."""
    return Path(shutil.copyfile(Path(__file__).with_name("fixtures") / "format-6.db", tmp_path / "run.db"))


async def run(path):
    requirements = [Requirement("is short", is_short)]
    return await fan_out(Patient(loop_budget=2), ITEMS, None, answering(), requirements, journal=path)


@pytest.mark.anyio
async def test_a_journal_with_docstrings_is_resumed(path):
    """F11: its digests of code depend on docstrings, and are compared as they were recorded."""
    again = await run(path)
    assert ["7", "7", "7"] == [outcome.result.value for outcome in again.outcomes]


@pytest.mark.anyio
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="code is compared within one version of Python")
async def test_another_check_is_seen_in_a_journal_with_docstrings(path, monkeypatch):
    """F16: what decides answers is compared, whatever the format."""
    monkeypatch.setattr(is_short, "__code__", (lambda text: len(text) > 9).__code__)
    with pytest.raises(JournalMismatch) as raised:
        await run(path)
    (difference,) = raised.value.differences
    assert difference.startswith("requirements[0].check.code of Python 3.11: was")


@pytest.mark.anyio
async def test_another_version_of_python_is_named(tmp_path, monkeypatch):
    """F11: it compiles code differently, so that a parser can't be compared, and a check is not."""

    async def run(count, kind):
        items = ["q0", Action("q1", kind)][:count]
        return await fan_out(
            Patient(), items, None, answering(default="7"), [is_short], journal=tmp_path / f"{count}.db"
        )

    with monkeypatch.context() as other:
        other.setattr(_description, "CODE_KEY", "code of Python 3.99")
        other.setattr(_fingerprint, "PYTHON", "3.99")
        await run(1, parse)
        await run(2, parse)
    with capture_logs() as logs:
        assert 1 == (await run(1, parse)).counts()["succeeded"]
    assert [("3.99", PYTHON)] == [(log["was"], log["now"]) for log in logs if "journal_python_changed" == log["event"]]
    with pytest.raises(JournalMismatch, match=rf"begun with Python 3\.99, this is Python {PYTHON}"):
        await run(2, parse)


def test_a_digest_with_docstrings_is_that_of_the_bytecode():
    """F11: whatever the version of Python."""
    described = fingerprint_of(MultiTurnStrategy(), [Requirement("r", is_short)], None, None, None, as_of=6)
    code = is_short.__code__
    whole = canonical([code.co_code.hex(), list(code.co_names), [repr(one) for one in code.co_consts]])
    (digest,) = (value for name, value in described["requirements"][0]["check"].items() if name.startswith("code"))
    assert hashlib.sha256(whole.encode()).hexdigest()[:16] == digest


def test_a_parser_is_compared_with_and_without_its_docstring():
    """F17: an item of an earlier format is the same question."""
    assert item_digest(Action("q", parse), 0) != earlier_item_digests(Action("q", parse), 0)[0]
