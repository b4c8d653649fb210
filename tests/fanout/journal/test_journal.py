"""The journal: what is in it, what comes back out of it, and which files it refuses."""

import contextlib
import csv
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import anyio
import attrs
import pytest

from sampling import (
    Action,
    BackendError,
    Budget,
    Context,
    EscalationStrategy,
    FatalError,
    Generation,
    Journal,
    MajorityVotingStrategy,
    Message,
    MultiTurnStrategy,
    Options,
    RateLimited,
    RejectionSamplingStrategy,
    Requirement,
    Tier,
    Usage,
    Validation,
    checks,
    fan_out,
    open_fan_out,
)
from sampling.backends.layers import Cached, Retrying
from sampling.errors import (
    ErrorFromJournal,
    JournalDamaged,
    JournalLocked,
    JournalMismatch,
    JournalTooNew,
    JournalWriteFailed,
)
from sampling.fanout.journal import _lock, export
from sampling.fanout.journal import _store as store
from sampling.fanout.journal._export import live_row
from sampling.fanout.journal._records import Recorder
from sampling.testing import After, ScriptedBackend
from tests.faults.journals import YES, InlineJournal, answering, asked, is_whole, numbers, rows, stored

ONCE = RejectionSamplingStrategy()
NEVER = Requirement("is never good enough", lambda text: False)


@attrs.frozen
class River:
    name: str

    @classmethod
    def parse(cls, text):
        return cls(text)


class OddError(Exception):
    """An error of an unknown type."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.db"


class TestWhatComesBack:
    def test_the_answer_of_an_escalation_is_that_of_its_tier(self, run, path):
        """F11: each tier counts its iterations from 1, so the answer is not known by its iteration."""
        strategy = EscalationStrategy([Tier(), Tier()], loop_budget=1)
        asked_once = ScriptedBackend(["no", "yes"])

        async def twice():
            first = await fan_out(strategy, ["q"], None, asked_once, [YES], journal=Journal(path))
            second = await fan_out(strategy, ["q"], None, asked_once, [YES], journal=Journal(path))
            return first.outcomes[0].result, second.outcomes[0].result

        before, after = run(twice)
        assert ("yes", "valid", True) == (after.text, after.best.outcome, after.success)
        assert [one.iteration_id for one in before.attempts] == [one.iteration_id for one in after.attempts]
        assert before.best.iteration_id == after.best.iteration_id

    def test_a_result_is_restored_as_it_was(self, run, path):
        """F11: a stored outcome has every attempt with conversation, checks, usage, times and value."""

        def check(text):
            return Validation(text.endswith("yes"), "must end in yes", 0.5)

        def reply(request):
            if request.attempt == 0 and request.subsample == 0:
                return After(1.0, Generation("no\nreally", Usage(3, 1, 0.25), "length", "m", reasoning="hm"))
            if request.attempt == 1 and request.subsample == 0:
                return After(1.0, RateLimited("slow down", retry_after_s=3.0))
            return After(2.5, Generation(f"“{asked(request)}” \ud800 yes", Usage(2, 2)))

        strategy = MultiTurnStrategy(loop_budget=3, concurrency_budget=2, requirements=[lambda text: len(text) > 1])
        ctx = Context([Message("system", "Be brief."), Message("user", "a"), Message("assistant", "b")])
        items = [("first", Action("Name a river.", River.parse)), ("second", "And a lake.")]

        async def call(backend):
            return await fan_out(
                strategy, items, ctx, backend, [Requirement("ends in yes", check)], journal=InlineJournal(path)
            )

        first = run(call, ScriptedBackend(reply))
        again = run(call, answering(default=AssertionError("asked again")))
        for one, other in zip(first.outcomes, again.outcomes, strict=True):
            assert one.usage == other.usage
            for ours, theirs in zip(one.result.attempts, other.result.attempts, strict=True):
                assert _without_errors(ours) == _without_errors(theirs)
            assert [(type(e), str(e)) for e in one.result.errors] == [(type(e), str(e)) for e in other.result.errors]
            assert one.result.best.iteration == other.result.best.iteration
            assert one.result.value == other.result.value
            assert one.result.explain() == other.result.explain()
        [error] = again.outcomes[0].result.errors
        assert 3.0 == error.retry_after_s
        assert isinstance(again.outcomes[0].result.value, River)
        assert first.usage == again.usage

    @pytest.mark.parametrize("parser", [None, str.strip, str.upper, len], ids=["none", "same", "other", "number"])
    def test_the_value_of_an_invalid_answer_is_restored(self, run, path, parser):
        """F11: `result.value` is the answer of an item that failed, too."""
        twice = RejectionSamplingStrategy(loop_budget=2)
        items = [Action(number, parser) for number in numbers(3)]
        live, again = (
            run(fan_out, twice, items, None, answering(default="no"), [NEVER], journal=InlineJournal(path))
            for _ in range(2)
        )
        for one, other in zip(live.outcomes, again.outcomes, strict=True):
            assert "failed" == one.status
            assert one.result.value == other.result.value
            assert other.result.value is not None
            if parser is None:
                assert ["no", "no"] == [attempt.value for attempt in other.result.slices]

    def test_the_values_of_all_attempts_come_back_with_their_types(self, run, path):
        """F11: those of other attempts than the answer too, and of an answer that no check accepts."""
        for number, picky in enumerate(([], [NEVER])):
            journal = path.with_name(f"{number}.db")
            voting = MajorityVotingStrategy(concurrency_budget=3)
            answers = answering(default='{"name": "Rhine"}')
            live, again = (
                run(fan_out, voting, [Action("q", River)], None, answers, picky, journal=InlineJournal(journal))
                for _ in range(2)
            )
            values = [attempt.value for attempt in live.outcomes[0].result.attempts]
            assert River in {type(value) for value in values}
            assert values == [attempt.value for attempt in again.outcomes[0].result.attempts]
            assert live.outcomes[0].result.value == again.outcomes[0].result.value

    def test_the_options_of_an_attempt_come_back(self, run, path):
        """F11: but nothing that may be a key."""

        def vary(plan, subsample, attempt):
            return attrs.evolve(plan, options=Options(temperature=0.5, seed=subsample, extra={"key": "canary"}))

        varied = RejectionSamplingStrategy(concurrency_budget=2, variation=vary)
        live, again = (
            run(fan_out, varied, ["q"], None, answering(), [NEVER], journal=InlineJournal(path)) for _ in range(2)
        )
        [one], [other] = live.outcomes, again.outcomes
        sent = [attempt.tried.options for attempt in one.result.attempts]
        assert [0, 1] == [options.seed for options in sent]
        assert [attrs.evolve(options, extra={}) for options in sent] == [
            attempt.tried.options for attempt in other.result.attempts
        ]
        assert ("extra options of attempts are not stored",) == one.notes == other.notes
        assert b"canary" not in path.read_bytes()

    def test_what_a_judge_said_comes_back(self, run, path):
        """F11: with the question that it was asked."""
        judge = checks.judge("is polite", backend=answering(default="yes"))
        live, again = (
            run(fan_out, ONCE, ["q"], None, answering(), [judge], journal=InlineJournal(path)) for _ in range(2)
        )
        [said], [restored] = (result.outcomes[0].result.best.validations for result in (live, again))
        assert "yes" == said.transcript[-1].text
        assert said.transcript == restored.transcript
        assert 1 == export(path, path.with_suffix(".csv"))
        assert "1" in Journal(path).to_html()

    def test_an_answer_after_a_fatal_error_still_does_not_count(self, run, path):
        """F11: a resumed result has the same slices."""

        async def backend(request):
            await anyio.sleep((0, 2, 1)[request.subsample])
            if request.subsample == 1:
                raise FatalError("no account")
            return "no"

        same = RejectionSamplingStrategy(concurrency_budget=3, loop_budget=2, deterministic=True)
        live, again = (run(fan_out, same, ["q"], None, backend, [NEVER], journal=InlineJournal(path)) for _ in range(2))
        for result in (live.outcomes[0].result, again.outcomes[0].result):
            assert [1] == [one.iteration for one in result.slices]
            assert [1, 2] == [one.iteration for one in result.attempts if one.outcome == "invalid"][:2]

    def test_an_answer_from_a_cache_is_still_known_as_one(self, run, path):
        """F11: the latency of such an attempt says nothing about the model."""
        backend = Cached(answering())
        run(fan_out, ONCE, numbers(3), None, backend)
        live, again = (run(fan_out, ONCE, numbers(3), None, backend, journal=InlineJournal(path)) for _ in range(2))
        for result in (live, again):
            assert [True] * 3 == [outcome.result.attempts[0].from_cache for outcome in result.outcomes]

    def test_errors_come_back_with_their_own_types(self, run, path):
        """F11: our errors and Python's are restored if they can be. Others keep their name and message."""
        errors = {
            "0": RateLimited("slow"),
            "1": KeyError("gone"),
            "2": OddError("odd"),
            "3": UnicodeDecodeError("u", b"", 0, 1, "r"),
        }
        first = run(
            fan_out, ONCE, numbers(5), None, answering(errors), journal=InlineJournal(path), on_error="continue"
        )
        again = run(fan_out, ONCE, numbers(5), None, answering(), journal=InlineJournal(path), on_error="continue")
        # The message of a UnicodeDecodeError is made from bytes, which are not recorded.
        restored = [RateLimited, KeyError, ErrorFromJournal, ErrorFromJournal]
        assert restored == [type(o.error) for o in again.outcomes[:4]]
        assert ["errored"] * 4 + ["succeeded"] == [o.status for o in again.outcomes]
        assert "OddError: odd" == str(again.outcomes[2].error)
        assert ["OddError", "UnicodeDecodeError"] == [o.error.type_name for o in again.outcomes[2:4]]
        assert [str(o.error) for o in first.outcomes[:1]] == [str(o.error) for o in again.outcomes[:1]]
        with pytest.raises(RateLimited):
            run(fan_out, ONCE, numbers(5), None, answering(), journal=InlineJournal(path))

    def test_an_error_keeps_the_hint_of_its_own(self, run, path):
        """F11: the hint of its class may say something else."""
        errors = {
            "0": BackendError("no", hint="Bearer sk-canary-0123456789abcdef"),
            "1": RateLimited("slow", hint="ask"),
        }
        for model in (answering(errors), answering()):
            result = run(fan_out, ONCE, numbers(3), None, model, journal=InlineJournal(path), on_error="continue")
            assert "ask" == result.outcomes[1].error.hint
        assert "canary" not in result.outcomes[0].error.hint

    def test_tokens_written_to_a_cache_come_back(self, run, path):
        """F11: they have a price, although most servers report none."""
        answer = Generation("yes", Usage(9, 1, cached_input_tokens=2, cache_write_tokens=4))
        for model in (ScriptedBackend(lambda _: answer), answering()):
            [outcome] = run(fan_out, ONCE, numbers(1), None, model, journal=InlineJournal(path)).outcomes
            [attempt] = outcome.result.attempts
            usages = (outcome.result.usage, attempt.usage, attempt.generation.usage)
            assert [4] * 3 == [usage.cache_write_tokens for usage in usages]

    def test_no_key_gets_into_the_file(self, run, path):
        """I17: not from options, and not from what an error says."""
        canary = "sk-canary-0123456789abcdef"
        replies = {"1": BackendError(f"refused: Bearer {canary}")}
        options = Options(extra={"headers": {"authorization": canary}})
        run(
            fan_out,
            ONCE,
            numbers(3),
            None,
            answering(replies),
            journal=InlineJournal(path),
            options=options,
            on_error="continue",
        )
        assert canary.encode() not in path.read_bytes()
        assert b"canary" not in path.read_bytes()

    def test_what_the_budget_cut_off_is_asked_again_when_there_is_more(self, run, path):
        """F11: an item that a budget cut off stays open, and earlier spending counts on resume."""

        def call(budget):
            backend = answering(default=Generation("yes", Usage(5, 5, 1.0)))
            return run(fan_out, ONCE, numbers(10), None, backend, journal=InlineJournal(path), budget=budget), backend

        first, _ = call(Budget(requests=4))
        assert 4 == first.counts()["succeeded"]
        again, backend = call(Budget(requests=4))
        assert {"succeeded": 4, "failed": 6, "errored": 0} == again.counts()
        assert not backend.requests
        more, backend = call(Budget(requests=12))
        assert 6 == len(backend.requests)
        assert {"succeeded": 10, "failed": 0, "errored": 0} == more.counts()
        assert Usage(50, 50, 10.0) == more.usage

    def test_a_budget_is_not_charged_twice_for_the_same_run(self, run, path):
        """The budget that the first part was paid from knows it."""
        budget = Budget(requests=10)
        broken = answering({"6": RuntimeError("broken")})
        with pytest.raises(RuntimeError):
            run(fan_out, ONCE, numbers(10), None, broken, journal=InlineJournal(path), budget=budget, max_concurrency=1)
        assert 7 == budget.requests_made
        result = run(
            fan_out, ONCE, numbers(9), None, answering(), journal=Journal(path, on_change="continue"), budget=budget
        )
        assert 10 == budget.requests_made
        assert {"succeeded": 9, "failed": 0, "errored": 0} == result.counts()

    def test_what_was_spent_on_items_without_an_outcome_is_known_after_a_resume(self, run, path):
        """Usage is everything that was spent, in all processes that lived to tell."""
        replies = {"2": After(5.0, RuntimeError("broken"))}

        async def backend(request):
            from sampling import report_usage

            report_usage(Usage(1, 1))
            await anyio.sleep(1)
            if asked(request) == "2":
                raise RuntimeError("broken")
            return Generation("yes", Usage(1, 1))

        del replies
        with pytest.raises(RuntimeError):
            run(fan_out, ONCE, numbers(3), None, backend, journal=InlineJournal(path), max_concurrency=1)
        again = run(
            fan_out,
            ONCE,
            numbers(3),
            None,
            answering(default=Generation("yes", Usage(1, 1))),
            journal=InlineJournal(path),
        )
        assert Usage(4, 4) == again.usage


def _without_errors(attempt):
    plain = attrs.asdict(attempt, recurse=False)
    plain["error"] = (type(attempt.error), str(attempt.error))
    plain["validations"] = [
        (v.passed, v.reason, v.score, v.requirement.description, str(v.error)) for v in attempt.validations
    ]
    plain["tried"] = (attempt.tried.action.text, attempt.tried.context)
    plain["action"] = attempt.action.text
    plain.pop("value")
    return plain


class TestIdentity:
    def test_the_run_keeps_its_id_and_every_process_is_on_record(self, run, path):
        """F14: the journal records every process and its end."""
        broken = answering({"3": RuntimeError("broken")})
        with pytest.raises(RuntimeError):
            run(fan_out, ONCE, numbers(5), None, broken, journal=InlineJournal(path))
        assert "failed" == Journal(path).summary().status
        result = run(fan_out, ONCE, numbers(5), None, answering(), journal=InlineJournal(path))
        summary = Journal(path).summary()
        assert (result.run_id, "completed", 5, 2) == (
            summary.run_id,
            summary.status,
            summary.succeeded,
            summary.processes,
        )
        lives = rows(path, "SELECT pid, status, items, error FROM lives")
        assert [(os.getpid(), "failed", 5, "RuntimeError"), (os.getpid(), "completed", 5, None)] == lives

    @pytest.mark.parametrize("items", ["more", "fewer", "another"])
    def test_a_stream_of_items_is_compared_as_it_is_read(self, run, path, items):
        """F11, row 64: items of an iterator are compared while they are read."""
        run(fan_out, ONCE, iter(numbers(6)), None, answering(), journal=InlineJournal(path))
        changed = {"more": numbers(7), "fewer": numbers(5), "another": [*numbers(5), "x"]}[items]
        backend = answering()
        with pytest.raises(JournalMismatch, match=r"items: were 6, are more|items: were at least 6, are 5|item 5"):
            run(fan_out, ONCE, iter(changed), None, backend, journal=InlineJournal(path))
        assert not backend.requests

    def test_a_list_is_compared_before_anything_is_asked(self, run, path):
        """F11: also where something is to be asked before the item that has changed."""
        replies = {"1": After(9.0, RuntimeError("broken"))}
        backend = ScriptedBackend(lambda request: replies.get(asked(request), After(1.0, "yes")))
        with pytest.raises(RuntimeError):
            run(fan_out, ONCE, numbers(4), None, backend, journal=InlineJournal(path), max_concurrency=4)
        assert [0, 2, 3] == sorted(stored(path))
        backend = answering()
        with pytest.raises(JournalMismatch, match="item 3"):
            run(fan_out, ONCE, ["0", "1", "2", "three"], None, backend, journal=InlineJournal(path))
        assert not backend.requests

    def test_told_to_go_on_it_keeps_what_is_there(self, run, path):
        """F11: answers stay, what has none is asked as the call says now."""
        with pytest.raises(RuntimeError):
            run(
                fan_out,
                ONCE,
                numbers(4),
                None,
                answering({"2": RuntimeError()}),
                journal=InlineJournal(path),
                max_concurrency=1,
            )
        before = stored(path)
        backend = answering()
        strategy = RejectionSamplingStrategy(loop_budget=3)
        result = run(
            fan_out,
            strategy,
            ["x", "1", "2", "y", "z"],
            None,
            backend,
            journal=InlineJournal(path, on_change="continue"),
        )
        assert ["2", "x", "y", "z"] == sorted(map(asked, backend.requests))
        assert 5 == len(result.outcomes)
        assert before[1] == stored(path)[1]
        assert [before[0][:5]] == rows(path, "SELECT item, life, key, digest, status FROM replaced")

    def test_the_same_function_in_another_process_is_the_same(self, tmp_path):
        """F11: no address and no hash seed gets into the fingerprint, whatever a check or a type consists of."""
        script = tmp_path / "script.py"
        script.write_text(
            "import dataclasses, functools, sys, anyio, attrs\n"
            "from typing import Annotated\n"
            "from pydantic import AfterValidator, BaseModel\n"
            "from sampling import *\n"
            "def short(value):\n"
            "    return value\n"
            "class OneOf(frozenset):\n"
            "    pass\n"
            "Short = Annotated[str, AfterValidator(short), OneOf(['a', 'b', 'c'])]\n"
            "class Answer(BaseModel):\n"
            "    text: Short\n"
            "@dataclasses.dataclass\n"
            "class Plain:\n"
            "    texts: list[Short]\n"
            "@attrs.define\n"
            "class Checked:\n"
            "    text: str = attrs.field(validator=attrs.validators.in_({'a', 'b', 'c'}))\n"
            "table = {short: 1, frozenset('abc'): 2, (1, frozenset('abc')): 3, object(): 4, lambda: 0: 5}\n"
            "def make(n):\n"
            "    return lambda text: len(text) > n and text not in {'a', 'b', 'c'}\n"
            "def two(text, least):\n"
            "    return len(text) > least\n"
            "async def backend(request):\n"
            "    print('asked', file=sys.stderr)\n"
            "    return 'hello'\n"
            "reqs = [make(1), Requirement('p', functools.partial(two, least=2)), Requirement('m', 'x'.__ne__)]\n"
            "reqs += [Requirement('t', lambda text: bool(table and Short and Answer and Plain and Checked))]\n"
            "items = ['q', Action('q', str), Action('r', list[Short]), Action('s', Answer), Action('t', Plain)]\n"
            "call = functools.partial(fan_out, journal=sys.argv[1])\n"
            "print(anyio.run(call, RejectionSamplingStrategy(), items, None, backend, reqs))\n"
        )
        asked_times = []
        for seed in ("1", "2"):
            command = [sys.executable, str(script), str(tmp_path / "run.db")]
            done = subprocess.run(  # noqa: S603
                command,
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert (0, "completed: 5 items (2 succeeded, 3 failed)\n") == (done.returncode, done.stdout), done.stderr
            asked_times.append(done.stderr.count("asked"))
        assert [5, 0] == asked_times


class TestFile:
    def test_it_is_one_sqlite_file_written_ahead_and_synced(self, run, path):
        """F14: WAL, and nothing lies beside it when the run is over."""
        run(fan_out, ONCE, numbers(3), None, answering(), journal=InlineJournal(path))
        assert ["run.db"] == [file.name for file in path.parent.iterdir()]
        assert [("wal",)] == rows(path, "PRAGMA journal_mode")
        assert is_whole(path)

    @pytest.mark.anyio
    async def test_writes_are_synced_and_wait_for_others(self, path):
        """F14, row 65: `synchronous=FULL`, past the cache of the disk on macOS, and a busy timeout of 30 s."""
        seen = []

        class Watched(Journal):
            async def in_thread(self, work, limiter):
                return await super().in_thread(work, limiter)

        real = store.Store.write

        def write(self, *args, **more):
            names = ("synchronous", "fullfsync", "busy_timeout")
            seen.append([self._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names])
            return real(self, *args, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store.Store, "write", write)
            await fan_out(ONCE, numbers(3), None, answering(), journal=Watched(path))
        assert [2, 1, 30_000] == seen[0]

    def test_a_new_file_is_synced_before_and_after_it_gets_its_name(self, run, path, monkeypatch):
        """Row 65: after a power cut, there is a whole journal or none."""
        steps = []
        sync, replace = store._sync, Path.replace
        monkeypatch.setattr(store, "_sync", lambda path: (steps.append(("sync", path)), sync(path)))
        monkeypatch.setattr(Path, "replace", lambda path, to: (steps.append(("move", path)), replace(path, to)))
        run(fan_out, ONCE, numbers(3), None, answering(), journal=InlineJournal(path))
        new = path.with_name("run.db.new")
        assert [("sync", new), ("move", new), ("sync", path.parent)] == steps

    def test_many_items_share_a_transaction(self, run, path, monkeypatch):
        """F14: group commit: 64 at once do not need 64 writes each."""
        writes = []
        real = store.Store.write

        def write(self, intents, outcomes, *args, **more):
            writes.append((len(intents), len(outcomes)))
            return real(self, intents, outcomes, *args, **more)

        monkeypatch.setattr(store.Store, "write", write)
        run(fan_out, ONCE, numbers(640), None, answering(), journal=InlineJournal(path), max_concurrency=64)
        assert 640 == sum(intents for intents, _ in writes) == sum(outcomes for _, outcomes in writes)
        assert len(writes) < 40

    def test_an_outcome_can_neither_be_changed_nor_deleted(self, run, path):
        """I13: not even by other programs, unless they mean it."""
        run(fan_out, ONCE, numbers(2), None, answering(), journal=InlineJournal(path))
        database = sqlite3.connect(path)
        with pytest.raises(sqlite3.IntegrityError, match="never changes"):
            database.execute("UPDATE outcomes SET status = 'failed'")
        with pytest.raises(sqlite3.IntegrityError, match="never deleted"):
            database.execute("DELETE FROM outcomes")
        database.close()

    def test_an_older_version_is_brought_up_to_date(self, run, path):
        """A journal of version 1 opens, and its outcomes stay as they are."""
        run(fan_out, ONCE, numbers(3), None, answering(), journal=InlineJournal(path))
        before = stored(path)
        database = sqlite3.connect(path, isolation_level=None)
        database.executescript(
            "DROP TRIGGER outcomes_are_final; DROP TRIGGER outcomes_are_kept; PRAGMA user_version = 1;"
            "ALTER TABLE outcomes DROP COLUMN cached_input_tokens; ALTER TABLE outcomes DROP COLUMN reasoning_tokens;"
            "ALTER TABLE lives DROP COLUMN other_cached_input_tokens;"
            "ALTER TABLE lives DROP COLUMN other_reasoning_tokens;"
            "ALTER TABLE outcomes DROP COLUMN estimated_tokens; ALTER TABLE outcomes DROP COLUMN position;"
            "ALTER TABLE lives DROP COLUMN other_estimated_tokens; DROP TABLE replaced; DROP TABLE notes;"
            "ALTER TABLE lives DROP COLUMN other_attempts;"
        )
        database.close()
        backend = answering()
        run(fan_out, ONCE, numbers(3), None, backend, journal=InlineJournal(path))
        assert not backend.requests
        assert before == stored(path)
        assert [(6,)] == rows(path, "PRAGMA user_version")
        assert 2 == len(rows(path, "SELECT * FROM sqlite_master WHERE type = 'trigger'"))

    def test_a_newer_version_is_refused(self, run, path):
        """Row 62: a journal of a newer version is refused, because its meaning is unknown."""
        run(fan_out, ONCE, numbers(3), None, answering(), journal=InlineJournal(path))
        database = sqlite3.connect(path, isolation_level=None)
        database.execute("PRAGMA user_version = 99")
        database.close()
        content = path.read_bytes()
        with pytest.raises(JournalTooNew, match="version 99"):
            run(fan_out, ONCE, numbers(3), None, answering(), journal=InlineJournal(path))
        assert content == path.read_bytes()

    @pytest.mark.parametrize(
        "content",
        [b"", b"hello", b"SQLite format 3\x00" + b"\0" * 84, b"\0" * 8192],
        ids=["empty", "text", "header", "zeros"],
    )
    def test_what_is_no_journal_is_refused_and_left_alone(self, run, path, content):
        """Row 62: an empty file, too: we never leave one, so it was truncated, or is someone else's."""
        path.write_bytes(content)
        backend = answering()
        with pytest.raises(JournalDamaged):
            run(fan_out, ONCE, numbers(3), None, backend, journal=InlineJournal(path))
        assert content == path.read_bytes()
        assert not backend.requests

    def test_another_database_is_refused(self, run, path):
        """Row 76: neither another program's, nor one that was made to look like ours."""
        database = sqlite3.connect(path)
        database.execute("CREATE TABLE mine (x)")
        database.commit()
        with pytest.raises(JournalDamaged, match="not a journal"):
            run(fan_out, ONCE, numbers(3), None, answering(), journal=InlineJournal(path))
        database.executescript(f"PRAGMA application_id = {0x53414D50}; PRAGMA user_version = 2;")
        database.close()
        with pytest.raises(JournalDamaged, match="other tables"):
            run(fan_out, ONCE, numbers(3), None, answering(), journal=InlineJournal(path))

    def test_a_log_without_its_file_is_not_taken_for_a_new_run(self, run, path):
        """Row 62: SQLite would mix it into the new file."""
        path.with_name("run.db-wal").write_bytes(b"x" * 100)
        with pytest.raises(JournalDamaged, match=r"run\.db-wal"):
            run(fan_out, ONCE, numbers(3), None, answering(), journal=InlineJournal(path))

    def test_a_directory_that_is_not_there(self, run, tmp_path):
        """The error names the path, and nothing is asked."""
        from sampling.errors import JournalError

        with pytest.raises(JournalError, match="nowhere"):
            run(fan_out, ONCE, numbers(3), None, answering(), journal=tmp_path / "nowhere" / "run.db")


class SlowJournal(InlineJournal):
    """Takes a second for everything that a run does with the file."""

    async def in_thread(self, work, limiter):
        await anyio.sleep(1)
        return await super().in_thread(work, limiter)


class TestIntents:
    """An item that is about to be sampled is in the file before its call."""

    def test_an_item_is_not_sampled_before_its_intent_is_on_disk(self, run, path):
        """F11: else a process that is killed in between would not know that it may be billed twice."""
        seen = []

        async def backend(request):
            seen.append((int(asked(request)),) in rows(path, "SELECT item FROM intents"))
            return "yes"

        run(fan_out, ONCE, numbers(7), None, backend, max_concurrency=2, journal=SlowJournal(path))
        assert [True] * 7 == seen

    @pytest.mark.parametrize("ending", ["halted", "left", "cancelled", "drained"])
    def test_an_item_that_was_not_started_has_none(self, run, path, ending):
        """F5: if the run ends while an intent is being written, the item is not sampled, nor said to be in doubt."""

        async def backend(request):
            # The first answer frees a slot. While the intent of item 2 is written, item 1 ends the run.
            await anyio.sleep({"0": 1.0, "1": 1.5, "2": 1.0}[asked(request)])
            sampled.append(asked(request))
            return "no" if (asked(request), ending) == ("1", "halted") else "yes"

        async def main():
            call = {"max_concurrency": 2, "on_failure": "halt", "journal": SlowJournal(path)}
            async with open_fan_out(ONCE, numbers(9), None, backend, [YES], **call) as outcomes:
                began_at = anyio.current_time()
                if ending == "halted":
                    assert [0, 1] == [outcome.index async for outcome in outcomes]
                else:
                    # The intents of items 0 and 1 take a second, and item 0 another.
                    await anyio.sleep_until(began_at + 2.4)
                    if ending == "cancelled":
                        outcomes.cancel()
                        assert [0] == [outcome.index async for outcome in outcomes]
                    if ending == "drained":
                        outcomes.drain()
                        assert [0, 1] == [outcome.index async for outcome in outcomes]
            return outcomes.status

        sampled = []
        assert ("halted" if ending == "halted" else "stopped") == run(main)
        assert "2" not in sampled
        assert [] == rows(path, "SELECT item FROM intents WHERE item > 1")

    @pytest.mark.parametrize("ending", ["left", "cancelled"])
    def test_an_item_whose_task_has_not_begun_has_none(self, run, path, ending):
        """F5: an outcome and the intent of the next item are written together, and its reader may end the run."""

        async def backend(request):
            sampled.append(int(asked(request)))
            await anyio.sleep(1 if asked(request) == "0" else 50)
            return "yes"

        async def main():
            journal = InlineJournal(path)
            async with open_fan_out(ONCE, numbers(9), None, backend, max_concurrency=2, journal=journal) as outcomes:
                async for _ in outcomes:
                    if ending == "left":
                        break
                    outcomes.cancel()
            return outcomes.status

        sampled = []
        assert "stopped" == run(main)
        # Item 2 may have begun or not, as the event loop decides.
        assert sorted(sampled) == sorted(item for (item,) in rows(path, "SELECT item FROM intents"))

    def test_an_item_whose_intent_could_not_be_written_is_not_said_to_be_sampled_again(self, run, path):
        """F11: nothing was sent for it, so it is not billed twice."""

        class Full(InlineJournal):
            async def in_thread(self, work, limiter):
                if work.func.__name__ == "_write_now":
                    raise JournalWriteFailed("disk full")
                return await super().in_thread(work, limiter)

        async def main(journal, backend):
            with anyio.move_on_after(5):
                async with open_fan_out(ONCE, numbers(3), None, backend, journal=journal) as outcomes:
                    async for _ in outcomes:
                        pass
            return outcomes.maybe_billed_twice

        async def fail(backend):
            opened = open_fan_out(ONCE, numbers(3), None, backend, journal=Full(path))
            with pytest.raises(JournalWriteFailed):
                async with opened as outcomes:
                    await outcomes.collect()
            return opened.maybe_billed_twice

        async def never(request):
            await anyio.sleep_forever()

        assert () == run(main, InlineJournal(path), never)
        backend = answering()
        assert () == run(fail, backend)
        assert [] == list(backend.requests)
        assert (0, 1, 2) == run(main, InlineJournal(path), backend)


class TestLock:
    def test_a_second_run_is_refused_with_the_owner(self, run, path):
        """Row 63: in the same process."""

        async def main():
            backend = ScriptedBackend(lambda _: After(1.0, "yes"))
            async with open_fan_out(ONCE, numbers(5), None, backend, journal=InlineJournal(path)) as outcomes:
                await anext(outcomes)
                with pytest.raises(
                    JournalLocked, match=rf"run\.db\.lock is held by process {os.getpid()} on '.+', since 20"
                ):
                    await fan_out(ONCE, numbers(5), None, backend, journal=InlineJournal(path))
                return len(backend.requests)

        assert run(main) <= 5

    def test_another_process_is_refused_and_its_death_frees_the_lock(self, run, path):
        """Row 63: the system itself takes the lock from the dead: no stale lock can stand in the way."""
        code = (
            "import sys, anyio\n"
            "from sampling import *\n"
            "async def backend(request):\n"
            "    print('ready', flush=True)\n"
            "    await anyio.sleep(1000)\n"
            "async def main():\n"
            "    await fan_out(RejectionSamplingStrategy(), ['0', '1', '2'], None, backend, journal=sys.argv[1])\n"
            "anyio.run(main)\n"
        )
        with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as other:  # noqa: S603
            assert "ready\n" == other.stdout.readline()
            with pytest.raises(JournalLocked, match=f"process {other.pid} "):
                run(fan_out, ONCE, numbers(3), None, answering(), journal=InlineJournal(path))
            other.kill()
            other.wait()
        backend = answering()
        result = run(fan_out, ONCE, numbers(3), None, backend, journal=InlineJournal(path))
        assert 3 == len(backend.requests)
        assert (0, 1, 2) == result.maybe_billed_twice == Journal(path).summary().maybe_billed_twice

    def test_a_lock_that_cannot_be_checked_is_not_kept(self, run, path, monkeypatch):
        """F14: the file may be unreachable for a moment. The next call of this process is not refused."""
        with monkeypatch.context() as patch:
            patch.setattr(_lock, "_is_same_file", Mock(side_effect=PermissionError("unreachable")))
            with pytest.raises(JournalWriteFailed, match="unreachable"):
                run(fan_out, ONCE, numbers(1), None, answering(), journal=InlineJournal(path))
        assert 1 == len(run(fan_out, ONCE, numbers(1), None, answering(), journal=InlineJournal(path)).outcomes)

    def test_a_lock_whose_file_is_removed_meanwhile_is_taken_again(self, path, monkeypatch):
        """Row 63: the owner removes the file between the open and the lock of the next one. Two would hold it."""
        first, second, third = (_lock.FileLock(path) for _ in range(3))
        lock = _lock.fcntl.flock
        first.acquire()
        monkeypatch.setattr(_lock.fcntl, "flock", lambda *args: (first.release(), lock(*args)))
        second.acquire()
        with pytest.raises(JournalLocked, match=f"process {os.getpid()} "):
            third.acquire()
        second.release()
        assert not path.exists()

    def test_a_child_that_is_forked_does_not_hold_it(self, run, path):
        """Row 63: freed by the death of its owner, not of all who descend from it."""
        with subprocess.Popen([sys.executable, "-c", FORKING, str(path)], stdout=subprocess.PIPE, text=True) as owner:  # noqa: S603
            child = int(owner.stdout.readline())
            owner.kill()
            owner.wait()
        try:
            run(fan_out, ONCE, numbers(1), None, answering(), journal=InlineJournal(path))
        finally:
            os.kill(child, signal.SIGKILL)

    def test_a_child_that_is_forked_can_not_write(self, path):
        """F14: SQLite can't be used by a child. A check that forks and returns there, too, must not harm the run."""
        command = [sys.executable, "-W", "ignore", "-c", INHERITING, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
        assert ("", 0) == (done.stderr, done.returncode)
        assert ["write", "read", "record_end"] == done.stdout.split()
        assert [("running", None)] == rows(path, "SELECT status, ended_s FROM lives")


INHERITING = """
import os, sys
from pathlib import Path
from sampling.errors import JournalError
from sampling.fanout.journal._fingerprint import fingerprint_of
from sampling.fanout.journal._store import Spent, Store
from sampling.strategies import RejectionSamplingStrategy

path = Path(sys.argv[1])
store = Store(path)
fingerprint = fingerprint_of(RejectionSamplingStrategy(), [], None, None, None)
store.open(fingerprint, lambda _: fingerprint, "refuse")
beside = sorted(os.listdir(path.parent))
attempts = {
    "write": lambda: store.write([(0, 1, 2, 3)], []),
    "read": lambda: store.read(0, 10),
    "record_end": lambda: store.record_end("completed", None, None, Spent()),
}
if not os.fork():
    for name, attempt in attempts.items():
        try:
            attempt()
        except JournalError as error:
            assert "was opened by the process from which this one was forked" in str(error)
            print(name, flush=True)
    store.close()
    os._exit(0)
assert os.wait()[1] == 0
assert beside == sorted(os.listdir(path.parent))
assert store.read(0, 10) == []
store.close()
"""

FORKING = """
import os, sys, time, anyio
from sampling import *

async def backend(request):
    if not os.fork():
        # The child keeps what it inherited, and lives on.
        print(os.getpid(), flush=True)
        os.close(1)
    time.sleep(60)

async def main():
    await fan_out(RejectionSamplingStrategy(), ["0"], None, backend, journal=sys.argv[1])

anyio.run(main)
"""


class TestExport:
    def fill(self, run, path):
        replies = {
            "1": "no",
            "2": RateLimited("slow"),
            "3": Generation('yes "quoted", ünïcode\n\x1b[31m', Usage(3, 4, 0.5)),
        }
        items = [("a", "0"), ("b", "1"), ("c", "2"), ("d", "3"), ("e", Action("4", lambda _: {"river": ["Rhine"]}))]
        run(fan_out, ONCE, items, None, answering(replies), [YES], journal=InlineJournal(path), on_error="continue")

    def test_jsonl(self, run, path, tmp_path):
        """Point 2: one line an outcome, by index, with the value as it is."""
        self.fill(run, path)
        assert 5 == export(path, tmp_path / "out.jsonl")
        lines = (tmp_path / "out.jsonl").read_text("ascii").splitlines()
        table = [json.loads(line) for line in lines]
        assert ["succeeded", "failed", "errored", "succeeded", "succeeded"] == [row["status"] for row in table]
        assert (3, "d", 'yes "quoted", ünïcode\n\x1b[31m', 3, 4, 0.5) == tuple(
            table[3][name] for name in ("index", "key", "text", "input_tokens", "output_tokens", "cost")
        )
        assert ("RateLimited", "slow") == (table[2]["error_type"], table[2]["error"])
        assert {"river": ["Rhine"]} == table[4]["value"]

    def test_every_failure_has_its_reasons(self, run, path, tmp_path):
        """The requirement and the reason of each attempt that failed, and each error of a call that raised."""

        def fails(request):
            item = asked(request)
            if item == "2":
                return ConnectionError("one") if request.subsample else RateLimited("two")
            return RateLimited("slow") if item == "3" and request.attempt else "no"

        items = ["0", Action("1", float), "2", "3"]
        strategy = RejectionSamplingStrategy(loop_budget=2, concurrency_budget=2)
        settings = {"journal": InlineJournal(path), "on_error": "continue"}
        result = run(fan_out, strategy, items, None, ScriptedBackend(fails), [YES], **settings)
        export(path, tmp_path / "out.jsonl")
        table = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("ascii").splitlines()]

        refused = {"requirement": YES.description, "reason": YES.description}
        assert [{"iteration": number, **refused} for number in (1, 2, 3, 4)] == table[0]["failures"]
        assert {"the answer can be parsed"} == {failure["requirement"] for failure in table[1]["failures"]}
        assert all("could not convert" in failure["reason"] for failure in table[1]["failures"])
        assert {("ConnectionError", "one"), ("RateLimited", "two")} == {
            (failure["error_type"], failure["error"]) for failure in table[2]["failures"]
        }
        slow = {"error_type": "RateLimited", "error": "slow"}
        assert {"iteration": 1, **refused} in table[3]["failures"]
        assert {"iteration": 2, **slow} in table[3]["failures"]
        assert table == [
            {**live_row(outcome, [YES]), "elapsed_s": row["elapsed_s"]}
            for outcome, row in zip(result.outcomes, table, strict=True)
        ]

    def test_an_item_that_raised_has_the_counts_of_the_server(self, run, path, tmp_path):
        """Every try of every attempt is a request, also where no result says so."""
        served = ScriptedBackend(lambda _: RateLimited("slow", retry_after_s=0.0))
        backend = Retrying(served, attempts=4)
        strategy = RejectionSamplingStrategy(loop_budget=2)
        settings = {"journal": InlineJournal(path), "on_error": "continue"}
        [outcome] = run(fan_out, strategy, ["0"], None, backend, [YES], **settings).outcomes
        export(path, tmp_path / "out.jsonl")
        [row] = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("ascii").splitlines()]
        [again] = run(fan_out, strategy, ["0"], None, backend, [YES], **settings).outcomes

        assert 8 == len(served.requests)
        assert (2, 8) == (outcome.attempts, outcome.requests) == (again.attempts, again.requests)
        assert (2, 8) == (row["attempts"], row["requests"])

    def test_an_export_never_replaces_its_journal(self, run, path):
        """An export refuses to overwrite the journal, even through a link."""
        self.fill(run, path)
        link = path.with_name("out.jsonl")
        link.symlink_to(path)
        with pytest.raises(ValueError, match="must not overwrite the journal"):
            export(path, link)
        assert 5 == len(stored(path))

    def test_csv(self, run, path, tmp_path):
        """Point 2: the same columns, quoted as CSV wants it."""
        self.fill(run, path)
        export(str(path), str(tmp_path / "out.csv"))
        with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
            table = list(csv.DictReader(file))
        assert 'yes "quoted", ünïcode\n\x1b[31m' == table[3]["text"]
        assert '{"river": ["Rhine"]}' == table[4]["value"]
        assert ["a", "b", "c", "d", "e"] == [row["key"] for row in table]

    def test_parquet(self, run, path, tmp_path):
        """Point 2: typed columns."""
        pq = pytest.importorskip("pyarrow.parquet")
        self.fill(run, path)
        export(path, tmp_path / "out.parquet")
        table = pq.read_table(tmp_path / "out.parquet").to_pylist()
        assert 'yes "quoted", ünïcode\n\x1b[31m' == table[3]["text"]
        assert (4, 0.5) == (table[3]["output_tokens"], table[3]["cost"])

    def test_a_run_may_go_on_meanwhile(self, run, path, tmp_path):
        """F14: an export has every stored outcome and needs no lock."""

        async def main():
            backend = ScriptedBackend(lambda request: After(float(asked(request)), "yes"))
            async with open_fan_out(ONCE, numbers(5), None, backend, journal=InlineJournal(path)) as outcomes:
                taken = [await anext(outcomes) for _ in range(2)]
                return len(taken), export(path, tmp_path / "out.jsonl"), Journal(path).summary().succeeded

        assert (2, 2, 2) == run(main)

    def test_an_unknown_format_is_refused_by_name(self, path, tmp_path):
        """Bad input: the name, and what is allowed."""
        with pytest.raises(ValueError, match=r"\.jsonl, \.csv, \.parquet.*'out\.xls'"):
            export(path, tmp_path / "out.xls")

    def test_a_failed_export_leaves_what_was_there(self, run, path, tmp_path):
        """A damaged record is refused, and the old file is not half overwritten."""
        self.fill(run, path)
        out = tmp_path / "out.jsonl"
        out.write_text("old")
        database = sqlite3.connect(path, isolation_level=None)
        database.execute("DROP TRIGGER outcomes_are_final")
        database.execute("UPDATE outcomes SET key = 'x' WHERE item = 3")
        database.close()
        with pytest.raises(JournalDamaged):
            export(path, out)
        assert "old" == out.read_text()
        assert sorted(["out.jsonl", "run.db"]) == sorted(file.name for file in tmp_path.iterdir())


def test_a_copy_of_the_file_is_a_backup(run, path, tmp_path):
    """Once a run is over, the one file is all there is to keep."""
    run(fan_out, ONCE, numbers(3), None, answering(), journal=InlineJournal(path))
    shutil.copy(path, tmp_path / "copy.db")
    backend = answering()
    run(fan_out, ONCE, numbers(3), None, backend, journal=InlineJournal(tmp_path / "copy.db"))
    assert not backend.requests


def test_a_copy_is_whole_although_another_program_has_the_file_open(run, path, tmp_path):
    """F14: SQLite merges its log when the last connection is closed, which is not that of the run then."""

    async def main():
        async with open_fan_out(ONCE, numbers(50), None, answering(), journal=InlineJournal(path)) as outcomes:
            await anext(outcomes)
            reader = stack.enter_context(contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)))
            reader.execute("SELECT count(*) FROM outcomes").fetchone()
            return len([outcome async for outcome in outcomes])

    with contextlib.ExitStack() as stack:
        assert 49 == run(main)
        assert path.with_name("run.db-wal").exists()
        shutil.copy(path, tmp_path / "copy.db")
        assert 50 == Journal(tmp_path / "copy.db").summary().succeeded


def test_a_backup_by_sqlite_is_a_journal(run, path, tmp_path):
    """F14: a backup that is made during a run has every outcome of that moment, and can be resumed."""

    async def main():
        async with open_fan_out(ONCE, numbers(50), None, answering(), journal=InlineJournal(path)) as outcomes:
            await anext(outcomes)
            with (
                contextlib.closing(sqlite3.connect(path)) as source,
                contextlib.closing(sqlite3.connect(copy)) as target,
            ):
                source.backup(target)
            return [outcome async for outcome in outcomes]

    copy = tmp_path / "copy.db"
    run(main)
    recorded = stored(copy)
    assert recorded.items() <= stored(path).items()
    backend = answering()
    assert 50 == len(run(fan_out, ONCE, numbers(50), None, backend, journal=InlineJournal(copy)).outcomes)
    assert 50 - len(recorded) == len(backend.requests)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere: .ci/run runs this as another user")
def test_a_journal_in_a_directory_without_the_right_to_write_can_be_read(run, path, tmp_path_factory):
    """The summary and the export need no file beside the journal. A run does, and says so before it asks."""
    exported = tmp_path_factory.mktemp("exported") / "answers.jsonl"
    backend = ScriptedBackend(lambda _: "yes")
    run(fan_out, ONCE, ["a", "b"], None, backend, journal=path)
    path.parent.chmod(0o555)
    try:
        assert "completed" == Journal(path).summary().status
        assert 2 == export(path, exported)
        for file in (path, path.with_name("new.db")):
            with pytest.raises(JournalWriteFailed, match="Permission denied"):
                run(fan_out, ONCE, ["a", "b"], None, backend, journal=file)
    finally:
        path.parent.chmod(0o755)
    assert 2 == len(backend.requests)


def test_a_resume_reads_no_result_before_somebody_looks_at_it(run, tmp_path, monkeypatch):
    """Reading the results takes ten times as long as the rest of a resume."""
    read = []
    load = Recorder.load
    monkeypatch.setattr(
        Recorder, "load", lambda self, record, item: read.append(item.index) or load(self, record, item)
    )
    questions = [f"q{number}" for number in range(20)]
    path = tmp_path / "run.journal"

    def resume():
        return run(fan_out, ONCE, questions, None, ScriptedBackend(["yes"] * 20), journal=path)

    resume()
    again = resume()
    assert [] == read
    assert ("yes", [3]) == (again.outcomes[3].result.value, read)
