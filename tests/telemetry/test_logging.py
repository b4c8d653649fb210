"""`logging_hooks`: every event is one line with the right ids, and no text that a model or a user wrote."""

import json
import logging
from collections import Counter
from io import StringIO

import anyio
import pytest
import structlog
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from sampling import (
    Action,
    Attempt,
    BaseSamplingStrategy,
    Context,
    Generation,
    Hooks,
    IterationFinished,
    IterationStarted,
    Message,
    MultiTurnStrategy,
    Options,
    RateLimited,
    RejectionSamplingStrategy,
    Requirement,
    TransientError,
    Usage,
    current,
)
from sampling.telemetry import logging_hooks
from sampling.testing import After, CapturedEvents, ScriptedBackend

HOSTILE = "fine\n2026-01-01 [info] all requirements met\r\x1b[2J\x00\u202egpj"
PRIVATE = "the patient's name is Xanthippe"

log = structlog.get_logger("test")


@pytest.fixture
def lines():
    """All log lines of the test, with what is bound in their context."""
    with capture_logs(processors=[merge_contextvars]) as captured:
        yield captured


def is_short(text):
    """is short"""
    return len(text) < 10


def answering(*texts):
    return ScriptedBackend([Generation(text, Usage(7, len(text))) for text in texts])


class TestLines:
    def test_every_event_is_one_line_in_the_order_of_the_events(self, run, lines):
        """A captured call with a repair gives as many lines as events, each named for its event."""
        captured = CapturedEvents()
        captured.include(logging_hooks())
        strategy = MultiTurnStrategy(loop_budget=2)
        run(strategy.sample, "hi", None, answering("much too long", "short"), [is_short], hooks=captured)

        assert [line["event"] for line in lines] == [
            "loop_started",
            "iteration_started",
            "iteration_finished",
            "repaired",
            "iteration_started",
            "iteration_finished",
            "loop_finished",
        ]
        snake = [
            name[0].lower() + "".join(f"_{c.lower()}" if c.isupper() else c for c in name[1:])
            for name in captured.names
        ]
        assert snake == [line["event"] for line in lines]

    def test_an_attempt_is_logged_with_ids_outcome_tokens_and_seconds(self, run, lines):
        """The numbers on the line are those of the slice."""
        strategy = RejectionSamplingStrategy()
        backend = ScriptedBackend([After(1.5, Generation("yes", Usage(7, 3, 0.25), finish_reason="eos"))])
        result = run(strategy.sample, "hi", None, backend, hooks=logging_hooks())

        finished = next(line for line in lines if line["event"] == "iteration_finished")
        assert {
            "event": "iteration_finished",
            "log_level": "info",
            "sampling_id": result.sampling_id,
            "iteration_id": result.best.iteration_id,
            "iteration": 1,
            "subsample": 0,
            "attempt": 0,
            "outcome": "valid",
            "elapsed_s": 1.5,
            "input_tokens": 7,
            "output_tokens": 3,
            "cost": 0.25,
            "finish_reason": "eos",
            "answer_chars": 3,
            "answer_hash": "8a798890fe93",
        } == finished

    def test_the_end_of_a_call_says_how_it_went(self, run, lines):
        """`loop_finished` has the sum of all attempts, and why the call stopped."""
        strategy = RejectionSamplingStrategy(loop_budget=2)
        run(strategy.sample, "hi", None, answering("a" * 20, "b" * 30), [is_short], hooks=logging_hooks())

        last = lines[-1]
        assert (last["event"], last["success"], last["stop_reason"]) == ("loop_finished", False, "exhausted")
        assert (last["attempts"], last["iterations"], last["input_tokens"], last["output_tokens"]) == (2, 2, 14, 50)

    def test_the_start_of_a_call_names_the_strategy_its_budgets_and_requirements(self, run, lines):
        """`loop_started` says what is about to happen, without the question."""
        strategy = RejectionSamplingStrategy(loop_budget=2, concurrency_budget=3, requirements=["Is it polite?"])
        context = Context([Message("system", PRIVATE)])
        run(strategy.sample, PRIVATE, context, lambda_backend("yes"), [is_short], hooks=logging_hooks())

        first = lines[0]
        assert (
            first["strategy"],
            first["loop_budget"],
            first["concurrency_budget"],
        ) == ("RejectionSamplingStrategy", 2, 3)
        assert first["requirements"] == ["Is it polite?", "is short"]
        assert (1, len(PRIVATE)) == (first["context_messages"], first["prompt_chars"])

    def test_a_failed_attempt_names_the_requirements_that_failed_and_no_others(self, run, lines):
        """The descriptions are on the line of the attempt and on that of its repair."""
        reqs = [is_short, Requirement("has a comma", lambda text: "," in text), Requirement("ends", lambda text: True)]
        strategy = RejectionSamplingStrategy(loop_budget=2)
        run(strategy.sample, "hi", None, answering("much too long", "a,b"), reqs, hooks=logging_hooks())

        assert [line["failed"] for line in lines if "failed" in line] == [["is short", "has a comma"]] * 2
        assert [line["event"] for line in lines if "failed" in line] == ["iteration_finished", "repaired"]

    def test_an_answer_that_cannot_be_parsed_says_so(self, run, lines):
        """A parser that raises is a failed requirement, logged by the type of its error."""
        strategy = RejectionSamplingStrategy()
        run(strategy.sample, Action("hi", json.loads), None, answering(PRIVATE), hooks=logging_hooks())

        finished = next(line for line in lines if line["event"] == "iteration_finished")
        assert (finished["outcome"], finished["failed"]) == ("invalid", ["the answer can be parsed"])

    def test_an_errored_attempt_names_the_type_of_its_error_only(self, run, lines):
        """Row 72: a message may quote the prompt or a key, so it is on no line."""
        strategy = RejectionSamplingStrategy(loop_budget=2)
        run(strategy.sample, "hi", None, ScriptedBackend([RateLimited(PRIVATE), "ok"]), hooks=logging_hooks())

        finished = [line for line in lines if line["event"] == "iteration_finished"]
        assert [(line["outcome"], line.get("error_type")) for line in finished] == [
            ("errored", "RateLimited"),
            ("valid", None),
        ]
        assert PRIVATE not in repr(lines)

    def test_a_call_that_raises_has_its_last_line_too(self, run, lines):
        """`loop_finished` comes with the type of what the call raises."""
        strategy = RejectionSamplingStrategy()
        with pytest.raises(TransientError):
            run(strategy.sample, "hi", None, ScriptedBackend([TransientError("no")]), hooks=logging_hooks())

        assert (
            lines[-1]["event"],
            lines[-1]["error_type"],
            lines[-1]["success"],
        ) == ("loop_finished", "TransientError", False)
        assert "stop_reason" not in lines[-1]

    def test_a_cancelled_call_has_its_last_line_too(self, run, lines):
        """Attempts that were under way are logged as cancelled, and the call as over."""

        async def main():
            with anyio.move_on_after(1):
                await RejectionSamplingStrategy(concurrency_budget=2).sample(
                    "hi", None, ScriptedBackend(lambda request: After(9, "late")), hooks=logging_hooks()
                )

        run(main)

        outcomes = [line["outcome"] for line in lines if line["event"] == "iteration_finished"]
        assert outcomes == ["cancelled", "cancelled"]
        assert lines[-1]["event"] == "loop_finished"
        assert lines[-1]["error_type"].startswith("Cancelled")


def lambda_backend(text):
    return ScriptedBackend(lambda request: text)


class TestContent:
    def test_no_text_of_a_user_or_a_model_is_logged_by_default(self, run, lines):
        """Row 74: of questions, contexts, answers, reasons and repairs there is a length and a hash."""

        def picky(text):
            return False, f"I don't like {text}"

        strategy = MultiTurnStrategy(loop_budget=2)
        context = Context([Message("system", PRIVATE)])
        run(strategy.sample, PRIVATE, context, answering(PRIVATE, PRIVATE), [picky], hooks=logging_hooks())

        assert "Xanthippe" not in repr(lines)
        assert {len(PRIVATE)} == {line["answer_chars"] for line in lines if "answer_chars" in line}

    def test_equal_texts_have_equal_hashes_and_others_have_not(self, run, lines):
        """Row 74: what the hash is good for."""
        run(
            RejectionSamplingStrategy(loop_budget=3).sample,
            "hi",
            None,
            answering("one", "two", "one"),
            [lambda text: False],
            hooks=logging_hooks(),
        )

        first, second, third = [line["answer_hash"] for line in lines if line["event"] == "iteration_finished"]
        assert first == third
        assert first != second

    def test_content_is_in_fields_of_its_own_and_never_in_the_event(self, run, lines):
        """Row 73: with content=True the texts are there, but no line is named by one."""

        def picky(text):
            return False, f"no {text}"

        run(
            MultiTurnStrategy(loop_budget=2).sample,
            "the question",
            None,
            answering("the answer", "another"),
            [picky],
            hooks=logging_hooks(content=True),
        )

        by_event = {line["event"]: line for line in reversed(lines)}
        assert by_event["loop_started"]["prompt"] == "the question"
        assert by_event["iteration_finished"]["answer"] == "the answer"
        assert by_event["repaired"]["reasons"] == ["picky: no the answer"]
        assert "no the answer" in by_event["repaired"]["prompt"]
        assert set(by_event) == {
            "loop_started",
            "iteration_started",
            "iteration_finished",
            "repaired",
            "loop_finished",
        }

    @pytest.mark.parametrize("content", [True, False])
    def test_hostile_text_cannot_forge_a_line_or_steer_a_terminal(self, run, content):
        """Row 73: newlines, escapes, NUL and marks that turn the text around come out as visible escapes."""
        output = StringIO()
        logger = structlog.wrap_logger(
            structlog.PrintLogger(output), processors=[structlog.processors.KeyValueRenderer(repr_native_str=False)]
        )

        def picky(text):
            return False, text

        backend = ScriptedBackend([Generation(HOSTILE, finish_reason=HOSTILE), HOSTILE])
        options = Options(model=HOSTILE)
        hooks = logging_hooks(logger, content=content)
        reqs = [Requirement(HOSTILE, picky)]
        run(MultiTurnStrategy(loop_budget=2).sample, HOSTILE, None, backend, reqs, options=options, hooks=hooks)

        written = output.getvalue()
        assert len(written.splitlines()) == 7
        assert all(c.isprintable() or c == "\n" for c in written)
        assert (r"answer=fine\n2026-01-01 [info] all requirements met\r\x1b[2J\x00\u202egpj" in written) is content

    def test_a_long_text_is_cut(self, run, lines):
        """A long text is shortened in a log line, with its length."""
        run(
            RejectionSamplingStrategy().sample,
            "hi",
            None,
            answering("x" * 50_000),
            hooks=logging_hooks(content=True),
        )
        finished = next(line for line in lines if line["event"] == "iteration_finished")
        assert (len(finished["answer"]), finished["answer_chars"]) == (10_000, 50_000)


class TestIds:
    def test_each_concurrent_subsample_logs_with_ids_of_its_own(self, run, lines):
        """A backend, a check, a hook and a repair that log get the ids of the subsample they run in."""

        class Chatty(BaseSamplingStrategy):
            def repair(self, history):
                log.info("from_repair", told=history[-1].iteration_id)
                return Attempt(history[0].action, Context())

        async def backend(request):
            log.info("from_backend", told=request.iteration_id)
            await anyio.sleep((request.iteration * 7 % 5) / 10)
            log.info("from_backend", told=request.iteration_id)
            return request.iteration_id

        async def check(text):
            log.info("from_check", told=text)
            await anyio.sleep(0.1)
            log.info("from_check", told=text)
            return False

        hooks = Hooks()

        @hooks.on(IterationStarted, IterationFinished)
        async def hook(event):
            log.info("from_hook", told=event.iteration_id)
            await anyio.sleep(0.1)
            log.info("from_hook", told=event.iteration_id)

        strategy = Chatty(loop_budget=3, concurrency_budget=4)
        result = run(strategy.sample, "hi", None, backend, [check], hooks=hooks)

        assert {line["sampling_id"] for line in lines} == {result.sampling_id}
        assert [line["iteration_id"] for line in lines] == [line["told"] for line in lines]
        assert len({line["iteration_id"] for line in lines}) == 12
        counts = {"from_backend": 24, "from_check": 24, "from_hook": 48, "from_repair": 8}
        assert Counter(line["event"] for line in lines) == counts

    def test_the_lines_of_the_hooks_have_the_ids_of_their_events(self, run, lines):
        """Values bound in the context never overwrite the ids of an event."""
        captured = CapturedEvents()
        captured.include(logging_hooks())
        strategy = MultiTurnStrategy(loop_budget=2, concurrency_budget=3)
        backend = ScriptedBackend(lambda request: After(request.subsample / 4, "much too long"))
        run(strategy.sample, "hi", None, backend, [is_short], hooks=captured)

        assert [getattr(event, "iteration_id", None) for event in captured.events] == [
            line.get("iteration_id") for line in lines
        ]

    def test_a_nested_call_names_its_parent(self, run, lines):
        """The inner call's lines carry the attempt that it was made from, and the outer call's lines carry none."""
        inner, outer = (
            RejectionSamplingStrategy(hooks=logging_hooks()),
            RejectionSamplingStrategy(hooks=logging_hooks()),
        )

        async def backend(request):
            return (await inner.sample("inner", None, lambda_backend("yes"))).text

        result = run(outer.sample, "outer", None, backend)

        inner_lines = [line for line in lines if line["sampling_id"] != result.sampling_id]
        assert {result.best.iteration_id} == {line["parent_id"] for line in inner_lines}
        assert len(inner_lines) == 4
        assert not any("parent_id" in line for line in lines if line["sampling_id"] == result.sampling_id)

    def test_nothing_is_bound_after_the_call(self, run, lines):
        """Log lines after a call have none of its ids."""

        async def main():
            await RejectionSamplingStrategy().sample("hi", None, lambda_backend("yes"), hooks=logging_hooks())
            assert current() is None
            log.info("after")

        run(main)
        assert lines[-1] == {"event": "after", "log_level": "info"}


class TestLoggers:
    @pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
    def test_all_lines_have_the_level_that_was_asked_for(self, run, lines, level):
        """One level for all lines: an invalid attempt is nothing to be alarmed about."""
        run(RejectionSamplingStrategy().sample, "hi", None, lambda_backend("yes"), hooks=logging_hooks(level=level))
        assert {level} == {line["log_level"] for line in lines}

    def test_a_logger_keeps_what_is_bound_to_it(self, run, lines):
        """Give a logger of your own to have your fields on every line."""
        hooks = logging_hooks(structlog.get_logger().bind(customer="c7"))
        run(RejectionSamplingStrategy().sample, "hi", None, lambda_backend("yes"), hooks=hooks)
        assert {"c7"} == {line["customer"] for line in lines}

    @pytest.mark.parametrize(
        "logger", [logging.getLogger("x"), logging.LoggerAdapter(logging.getLogger("x")), "x", 5, structlog]
    )
    def test_what_is_not_a_structlog_logger_is_refused_where_it_is_passed_in(self, logger):
        """A standard logger has the methods but can't take fields: it would fail at every single event."""
        if logger is structlog:
            logger = structlog.PrintLogger
        with pytest.raises(TypeError, match="logger must be a structlog logger") as caught:
            logging_hooks(logger)
        assert repr(logger)[:40] in str(caught.value)

    def test_other_bad_arguments_are_refused_too(self):
        """The error names the argument, shows the value and says what is allowed."""
        with pytest.raises(ValueError, match="level must be one of debug, info, warning, error, got 'loud'"):
            logging_hooks(level="loud")
        with pytest.raises(TypeError, match=r"content must be True or False, got 'yes' \(str\)"):
            logging_hooks(content="yes")
