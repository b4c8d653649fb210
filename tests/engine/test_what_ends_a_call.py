"""Errors and cancellations end an attempt, a subsample or the call, and never undo a winner."""

import asyncio  # noqa: TID251 - its cancellation, wherever it is raised
import json
import math
import time
from functools import partial

import anyio
import pytest
from anyio.lowlevel import checkpoint
from structlog.testing import capture_logs

import sampling
from sampling import (
    Action,
    Budget,
    Diverse,
    EscalationStrategy,
    Fallback,
    FatalError,
    Generation,
    Hooks,
    IterationFinished,
    IterationStarted,
    LoopFinished,
    LoopStarted,
    MajorityVotingStrategy,
    MultiTurnStrategy,
    Options,
    RejectionSamplingStrategy,
    Requirement,
    Retrying,
    TextGrown,
    Tier,
    ToolCall,
    ToolLoop,
    TransientError,
    checks,
    tool,
)
from sampling.errors import (
    AnswerRejected,
    AuthenticationFailed,
    BadRequest,
    ModelNotFound,
    NestedTooDeeply,
    QuotaExhausted,
    RequestTooLarge,
    SelectionFailed,
    UnexpectedCancellation,
)
from sampling.testing import After, ScriptedBackend


def is_yes(text):
    return text == "yes"


async def sample(strategy, backend, reqs=(is_yes,), **arguments):
    with capture_logs():
        return await strategy.sample("q", None, backend, reqs, **arguments)


def wide(breadth=2, depth=1, **settings):
    return RejectionSamplingStrategy(loop_budget=depth, concurrency_budget=breadth, **settings)


class TestCleanupOfALoser:
    @pytest.mark.parametrize("raised", [RuntimeError, FatalError, MemoryError, RecursionError, KeyError])
    @pytest.mark.parametrize("depth", [1, 2])
    def test_what_a_nursery_raises_while_it_is_cancelled_does_not_undo_the_winner(self, run, raised, depth):
        """Semantics 3: on trio, such a nursery raises a group with the cancellation in it."""

        async def fails_when_cancelled():
            try:
                await anyio.sleep(100)
            finally:
                raise raised("in the cleanup")

        async def backend(request):
            if request.subsample == 0:
                await anyio.sleep(1)
                return "yes"
            async with anyio.create_task_group() as group:
                group.start_soon(fails_when_cancelled)
                group.start_soon(anyio.sleep, 100)
                await anyio.sleep(100)
            return "never"

        result = run(sample, wide(3, depth), backend)
        assert result.success
        assert 0 == result.best.subsample
        assert 3 == len(result.attempts)
        assert {"valid", "errored"} == {one.outcome for one in result.attempts}

    @pytest.mark.parametrize("deterministic", [False, True])
    @pytest.mark.parametrize("raised", [GeneratorExit, BaseException, MemoryError, RuntimeError], ids=repr)
    def test_nothing_but_the_end_of_the_process_undoes_the_winner(self, run, raised, deterministic):
        """Semantics 3: whatever the cleanup raises. In a deterministic call, not even before the winner is certain."""

        async def backend(request):
            try:
                await anyio.sleep([5, 1, 100][request.subsample])
            finally:
                if request.subsample == 2:
                    raise raised("in the cleanup")
            return ["no", "yes", "never"][request.subsample]

        result = run(sample, wide(3, deterministic=deterministic), backend)
        assert result.success
        assert "errored" == result.attempts[2].outcome
        assert isinstance(result.attempts[2].error, raised)

    @pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
    def test_the_end_of_the_process_does(self, run, raised):
        """Row 43: an interrupt that comes while a loser cleans up is not lost."""

        async def backend(request):
            try:
                await anyio.sleep([1, 100][request.subsample])
            finally:
                if request.subsample == 1:
                    raise raised
            return "yes"

        with pytest.raises(raised):
            run(sample, wide(), backend)

    def test_a_native_nursery_of_trio_does_not_undo_the_winner(self):
        """Semantics 3: the group that leaves a trio nursery may hold the cancellation beside an error."""
        import trio

        async def backend(request):
            if request.subsample == 0:
                await anyio.sleep(1)
                return "yes"

            async def fails_when_cancelled():
                with trio.CancelScope(shield=True):
                    await trio.sleep(2)
                raise RuntimeError("in the cleanup")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(fails_when_cancelled)
                await trio.sleep(100)
            return "never"

        from sampling.testing import run_virtual

        result = run_virtual(sample, wide(), backend, loop="trio")
        assert result.success
        [loser] = [one for one in result.attempts if one.subsample == 1]
        assert "errored" == loser.outcome
        assert isinstance(loser.error, ExceptionGroup)

    @pytest.mark.parametrize("breadth", [1, 2])
    def test_the_callers_cancellation_propagates_whatever_the_cleanup_raises(self, run, breadth):
        """Semantics 10: an error of the cleanup does not replace the cancellation."""

        async def backend(request):
            try:
                await anyio.sleep(100)
            finally:
                raise RuntimeError("in the cleanup")

        async def main():
            with anyio.move_on_after(1) as scope:
                await sample(wide(breadth, 3), backend)
            return scope.cancelled_caught

        assert run(main)

    @pytest.mark.parametrize("breadth", [1, 2])
    def test_a_native_cancellation_propagates_whatever_the_cleanup_raises(self, breadth):
        """Semantics 10: `Task.cancel` raises only once, and the cleanup may swallow that."""
        import asyncio  # noqa: TID251 - only asyncio has a native `Task.cancel`

        async def backend(request):
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                raise RuntimeError("in the cleanup") from None

        async def main():
            task = asyncio.create_task(sample(wide(breadth, 3), backend))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())


async def raise_cancellation():
    """Raise the cancellation of a scope that has ended, as leaking code does."""
    kept = None
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await checkpoint()
        except anyio.get_cancelled_exc_class() as error:
            kept = error
    raise kept


class TestUnexpectedCancellation:
    @pytest.mark.parametrize("breadth", [1, 3])
    def test_it_costs_one_attempt(self, run, breadth):
        """Semantics 10: a cancellation that nobody requested is a transient error."""

        async def backend(request):
            if request.attempt == 0:
                await raise_cancellation()
            return "yes"

        result = run(sample, wide(breadth, 2), backend)
        assert result.success
        assert result.errors
        assert {UnexpectedCancellation} == {type(error) for error in result.errors}
        assert result.errors[0].retryable
        assert isinstance(result.errors[0].__cause__, BaseException)

    @pytest.mark.parametrize("place", ["backend", "check", "async check", "hook"])
    def test_one_of_another_event_loop_is_no_different(self, run, place):
        """Semantics 10 and 11: code in a thread may run a loop of asyncio, on trio too."""

        def leak(where):
            if where == place:
                raise asyncio.CancelledError

        async def backend(request):
            await checkpoint()
            leak("backend")
            return "yes"

        async def later(text):
            leak("async check")
            return True

        def check(text):
            leak("check")
            return True

        hooks = Hooks()
        hooks.on(IterationFinished)(lambda event: leak("hook"))
        if place == "hook":
            result = run(sample, wide(1), backend, hooks=hooks)
            assert UnexpectedCancellation is type(result.hook_failures[0].error)
            return
        with pytest.raises(UnexpectedCancellation):
            run(sample, wide(1, 2), backend, [check, later])

    @pytest.mark.parametrize("breadth", [1, 3])
    def test_it_is_raised_if_nothing_else_happens(self, run, breadth):
        """Semantics 10: it is no deadline, and ends nothing quietly."""

        async def backend(request):
            await raise_cancellation()

        with pytest.raises(UnexpectedCancellation):
            run(sample, wide(breadth, 2), backend)

    @pytest.mark.parametrize("number", [1, 2])
    def test_a_check_that_raises_it_never_passes(self, run, number):
        """Semantics 6 and 10: a task group must not swallow it together with the check."""

        async def check(text):
            await raise_cancellation()

        async def passes(text):
            await anyio.sleep(0.1)
            return True

        reqs = [Requirement("leaks", check=check), Requirement("passes", check=passes)][:number]
        with pytest.raises(UnexpectedCancellation):
            run(sample, wide(1, 2), lambda request: checkpointed("yes"), reqs)

    def test_a_hook_that_raises_it_fails_like_any_other(self, run):
        """Semantics 10: the attempt and its subsample continue."""
        hooks = Hooks()

        @hooks.on(IterationFinished)
        async def leaks(event):
            await raise_cancellation()

        result = run(sample, wide(2, 2), lambda request: checkpointed("no"), hooks=hooks)
        assert 4 == len(result.slices)
        assert "exhausted" == result.stop_reason
        assert {UnexpectedCancellation} == {type(failure.error) for failure in result.hook_failures}


async def raise_group(*others):
    """Raise a cancellation inside of a group, as a nursery does whose task leaks one."""
    try:
        await raise_cancellation()
    except BaseException as error:
        raise BaseExceptionGroup("leaked", [error, *others]) from None


GROUPS = {"with an error": partial(raise_group, RuntimeError("broken")), "alone": raise_group}


class TestUnexpectedCancellationInAGroup:
    @pytest.mark.parametrize("breadth", [1, 3])
    @pytest.mark.parametrize("kind", GROUPS)
    @pytest.mark.parametrize("event", [LoopStarted, IterationStarted, TextGrown, IterationFinished, LoopFinished])
    def test_a_hook_does_not_undo_the_winner(self, run, breadth, kind, event):
        """Semantics 3 and 10: neither while the call runs, nor while its losers are cancelled."""
        hooks = Hooks()

        @hooks.on(event)
        async def leaks(event):
            await GROUPS[kind]()

        result = run(sample, wide(breadth, 2), ScriptedBackend(["yes"] * 3), hooks=hooks)
        assert result.success
        expected = ExceptionGroup if kind == "with an error" else UnexpectedCancellation
        assert {expected} >= {type(failure.error) for failure in result.hook_failures}

    @pytest.mark.parametrize("breadth", [1, 3])
    @pytest.mark.parametrize("number", [1, 2])
    def test_a_check_makes_its_attempt_invalid(self, run, breadth, number):
        """Semantics 6: a group with an error is an error of the check, not of the attempt."""
        raised = []

        async def check(text):
            if len(raised) < breadth:
                raised.append(text)
                await GROUPS["with an error"]()
            return True

        reqs = [Requirement("leaks", check=check), Requirement("passes", check=lambda text: checkpointed(True))][
            :number
        ]
        result = run(sample, wide(breadth, 2), lambda request: checkpointed("yes"), reqs)
        assert result.success
        assert {"invalid", "valid"} <= {one.outcome for one in result.attempts}

    @pytest.mark.parametrize("kind", GROUPS)
    def test_a_tool_that_raises_it_has_failed(self, run, kind):
        """Semantics 10: the model is told, as of any other failure of a tool."""

        async def weather(city: str) -> str:
            """Look up the weather."""
            await GROUPS[kind]()
            return "never"

        async def backend(request):
            await checkpoint()
            if request.messages[-1].role == "tool":
                return "yes"
            return Generation("", finish_reason="tool_calls", tool_calls=[ToolCall("1", "weather", '{"city": "Oslo"}')])

        assert run(sample, wide(1), ToolLoop(backend, [tool(weather)])).success

    @pytest.mark.parametrize("leak", [raise_cancellation, raise_group])
    def test_a_layer_sees_a_transient_error(self, run, leak):
        """Semantics 10: a layer that retries transient errors retries this one, and one that falls back does so."""
        sent = []

        async def backend(request):
            sent.append(request)
            if len(sent) == 1:
                await leak()
            return await checkpointed("yes")

        assert run(sample, wide(1), Retrying(backend)).success
        sent.clear()
        assert run(sample, wide(1), Fallback(backend, backend, on=TransientError)).success

    @pytest.mark.parametrize("layer", [Retrying, lambda inner: Fallback(inner, inner, on=TransientError)])
    def test_the_callers_own_cancellation_passes_through_layers(self, run, layer):
        """Semantics 10: no request follows it."""
        sent = []

        async def backend(request):
            sent.append(request)
            await anyio.sleep(100)

        async def main():
            with anyio.move_on_after(1) as scope:
                await sample(wide(1, 2), layer(backend))
            return scope.cancelled_caught

        assert run(main)
        assert 1 == len(sent)


class TestACallThatCleansUp:
    """A task of asyncio counts its cancellations, and still does so while it cleans up after one."""

    @staticmethod
    def busy_once(fails):
        async def backend(request):
            await checkpoint()
            if request.attempt == 0:
                await fails()
            return "yes"

        return backend

    @staticmethod
    async def be_busy():
        raise TransientError("busy")

    @pytest.mark.parametrize("breadth", [1, 3])
    @pytest.mark.parametrize("fails", [be_busy, raise_cancellation])
    def test_a_shielded_call_survives_an_error(self, run, breadth, fails):
        """Semantics 10 and 11: the cancellation around the call was answered before the call, and is not its own."""

        async def main():
            with anyio.CancelScope() as scope:
                scope.cancel()
                try:
                    await anyio.sleep(1)
                finally:
                    with anyio.CancelScope(shield=True):
                        answers.append(await sample(wide(breadth, 2), self.busy_once(fails)))
            return scope.cancelled_caught

        answers = []
        assert run(main)
        [result] = answers
        assert result.success
        assert result.errors

    @pytest.mark.parametrize("breadth", [1, 3])
    @pytest.mark.parametrize("fails", [be_busy, raise_cancellation])
    def test_so_does_one_after_a_native_cancellation(self, breadth, fails):
        """Semantics 10: `Task.cancel` before the call is not a request to end the call."""

        async def main():
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                return await sample(wide(breadth, 2), self.busy_once(fails))

        async def cancelled():
            task = asyncio.create_task(main())
            await asyncio.sleep(0)
            task.cancel()
            return await task

        assert asyncio.run(cancelled()).success

    @pytest.mark.parametrize("breadth", [1, 3])
    @pytest.mark.parametrize("before", [0, 1])
    def test_a_further_native_cancellation_ends_it(self, breadth, before):
        """Semantics 10: before its first await, or in it, and whatever the backend makes of it."""

        async def backend(request):
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                raise RuntimeError("in the cleanup") from None

        async def main():
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                if before:
                    asyncio.current_task().cancel()
                await sample(wide(breadth, 2), backend)

        async def cancelled():
            task = asyncio.create_task(main())
            await asyncio.sleep(0)
            task.cancel()
            if not before:
                await asyncio.sleep(0.01)
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancelled())


async def checkpointed(text):
    await checkpoint()
    return text


def replies(table):
    """Return a backend with a reply for each (subsample, attempt), after one second more for each subsample."""
    return ScriptedBackend(
        lambda request: After(1.0 + request.subsample, table.get((request.subsample, request.attempt), "no"))
    )


ABOUT_ACCOUNT = [AuthenticationFailed, QuotaExhausted, FatalError]
ABOUT_REQUEST = [BadRequest, ModelNotFound, RequestTooLarge]


class TestErrors:
    @pytest.mark.parametrize("error", [*ABOUT_ACCOUNT, *ABOUT_REQUEST])
    @pytest.mark.parametrize("deterministic", [False, True])
    def test_one_that_every_subsample_would_meet_ends_the_call(self, run, error, deterministic):
        """Semantics 5: all of them send the same request, so the siblings in flight are cancelled."""
        backend = replies({(0, 0): error("refused"), (1, 0): "yes", (2, 0): "yes"})
        with pytest.raises(error):
            run(sample, wide(3, 2, deterministic=deterministic), backend)
        assert 3 == len(backend.requests)

    @pytest.mark.parametrize("error", ABOUT_REQUEST)
    @pytest.mark.parametrize("deterministic", [False, True])
    def test_one_bad_model_of_several_ends_its_subsample_only(self, run, error, deterministic):
        """Semantics 5: another subsample sends another request, and wins."""
        backend = replies({(0, 0): error("no such model"), (1, 0): "yes"})
        strategy = wide(2, 3, variation=Diverse(models=("bad", "good")), deterministic=deterministic)
        result = run(sample, strategy, backend)
        assert result.success
        assert [error] == [type(one) for one in result.errors]
        assert 1 == sum(request.subsample == 0 for request in backend.requests)

    def test_a_conversation_that_outgrew_its_context_ends_alone(self, run):
        """Semantics 5: the siblings have other conversations."""
        backend = replies({(0, 0): "a", (0, 1): BadRequest("context too long"), (1, 0): "b", (1, 1): "yes"})
        result = run(sample, MultiTurnStrategy(loop_budget=3, concurrency_budget=2), backend)
        assert result.success
        assert 1 == result.best.subsample

    @pytest.mark.parametrize("error", ABOUT_ACCOUNT)
    def test_one_about_the_account_ends_the_call_whatever_the_others_send(self, run, error):
        """Semantics 5: the key is the same for all of them."""
        backend = replies({(0, 0): error("refused"), (1, 0): "yes"})
        with pytest.raises(error):
            run(sample, wide(2, variation=Diverse(models=("a", "b"))), backend)

    def test_seeds_do_not_make_requests_different(self, run):
        """Semantics 5: every sample of a question has a seed of its own."""
        backend = replies({(0, 0): BadRequest("refused"), (1, 0): "yes"})
        with pytest.raises(BadRequest):
            run(sample, wide(2, variation=Diverse(seeds=range(9))), backend)

    def test_one_about_a_sample_costs_one_attempt(self, run):
        """Semantics 5: another sample may be accepted."""
        backend = replies({(0, 0): AnswerRejected("tool_use_failed"), (0, 1): "yes"})
        assert run(sample, wide(1, 2), backend).success

    @pytest.mark.parametrize(
        ("leaves", "requests", "success"),
        [
            ([TransientError("a"), TransientError("b")], 2, True),
            ([TransientError("a"), RuntimeError("b")], 1, False),
            ([TransientError("a"), ExceptionGroup("inner", [AuthenticationFailed("b")])], 1, False),
        ],
    )
    def test_a_group_counts_as_its_leaves(self, run, leaves, requests, success):
        """Semantics 5: the worst leaf decides."""
        backend = ScriptedBackend(lambda request: "yes" if request.attempt else ExceptionGroup("several", leaves))
        if success:
            assert run(sample, wide(1, 2), backend).success
        else:
            with pytest.raises(ExceptionGroup):
                run(sample, wide(1, 2), backend)
        assert requests == len(backend.requests)

    def test_a_group_with_a_bad_key_ends_the_siblings(self, run):
        """Semantics 5: as the bad key alone would."""
        group = ExceptionGroup("several", [TransientError("a"), AuthenticationFailed("b")])
        with pytest.raises(ExceptionGroup):
            run(sample, wide(2), replies({(0, 0): group, (1, 0): "yes"}))

    def test_an_unknown_model_of_one_tier_leads_to_the_next(self, run):
        """Semantics 5: another tier has another model. A bad key ends the call."""

        def reply(request):
            return ModelNotFound("small") if request.options.model == "small" else "yes"

        tiers = [Tier(options=Options(model="small")), Tier(options=Options(model="large"))]
        assert run(sample, EscalationStrategy(tiers), ScriptedBackend(reply)).success


class Streaming(ScriptedBackend):
    """A streaming backend that turns what its receiver raises into an error of its own."""

    def __init__(self, reply=lambda request: "text"):
        super().__init__(reply)

    async def stream(self, request, receive):
        generation = await self.generate(request)
        try:
            receive(generation.text)
        except Exception as error:
            raise TransientError("interrupted") from error
        return generation


class TestDefectsOfChecks:
    @pytest.mark.parametrize("kind", ["plain", "async", "blocking", "partial", "nested", "parser"])
    @pytest.mark.parametrize("breadth", [1, 3])
    @pytest.mark.anyio
    async def test_a_misspelt_name_ends_the_call_at_once(self, kind, breadth, anyio_backend):
        """Semantics 6: a typo costs one request, and the model is not blamed."""

        def misspelt(text):
            return lenght(text) > 3  # noqa: F821 - the point of this test

        async def misspelt_async(text):
            await checkpoint()
            return lenght(text) > 3  # noqa: F821

        backend = Streaming()
        action = Action("q", parser=misspelt) if kind == "parser" else "q"
        reqs = {
            "plain": [Requirement("is long", check=misspelt)],
            "async": [Requirement("is long", check=misspelt_async), Requirement("b", check=misspelt_async)],
            "blocking": [Requirement("is long", check=misspelt, blocking=True)],
            "partial": [Requirement("is long", check=bool, partial=misspelt)],
            "nested": [checks.not_(Requirement("is long", check=misspelt))],
            "parser": [],
        }[kind]
        with capture_logs(), pytest.raises(NameError, match="lenght"):
            await wide(breadth, 4).sample(action, None, backend, reqs)
        assert len(backend.requests) <= breadth

    def test_a_misspelt_name_in_a_task_of_a_check_ends_the_call_at_once(self, run):
        """Semantics 5 and 6: a group counts as its leaves do."""

        async def misspelt():
            await checkpoint()
            lenght  # noqa: B018, F821

        async def check(text):
            async with anyio.create_task_group() as group:
                group.start_soon(misspelt)
                group.start_soon(anyio.sleep, 1)
            return True

        backend = ScriptedBackend(["text"] * 4)
        with pytest.raises(ExceptionGroup) as caught:
            run(sample, wide(1, 4), backend, [check])
        assert [NameError] == [type(error) for error in caught.value.exceptions]
        assert 1 == len(backend.requests)

    def test_an_error_of_the_answer_in_a_task_makes_it_invalid(self, run):
        """Semantics 6: in a group, too, the answer may have the typo."""

        async def execute(text):
            exec(text, {})  # noqa: S102 - the point of this test

        async def check(text):
            async with anyio.create_task_group() as group:
                group.start_soon(execute, text)
            return True

        result = run(sample, wide(1, 2), lambda request: checkpointed("undefined_name"), [check])
        assert 2 == len(result.slices)

    def test_a_missing_import_ends_the_call_at_once(self, run):
        """Semantics 6: as a misspelt name does."""

        def check(text):
            import no_such_module_anywhere  # noqa: F401

        with pytest.raises(ImportError, match="no_such_module_anywhere"):
            run(sample, wide(1, 4), lambda request: checkpointed("text"), [check])

    @pytest.mark.parametrize("code", ["undefined_name", "import no_such_module_anywhere"])
    def test_an_error_of_the_answer_makes_it_invalid(self, run, code):
        """Semantics 6: the check runs the answer, and the answer has the typo."""

        def runs(text):
            exec(text, {})  # noqa: S102 - the point of this test
            return True

        def compiled(text):
            exec(compile(text, "answer.py", "exec"), {"__name__": "answer"})  # noqa: S102
            return True

        for check in (runs, compiled):
            result = run(sample, wide(1, 2), lambda request: checkpointed(code), [check])
            assert 2 == len(result.slices)
            assert isinstance(result.best.error, NameError | ImportError)

    def test_the_answer_may_call_back_a_check_with_a_typo(self, run):
        """Semantics 6: the check's own code raises it, although the answer called that code."""

        def check(text):
            names = {}
            exec(text, names)  # noqa: S102 - the point of this test
            return names["call"](lambda: lenght(text))  # noqa: F821

        backend = ScriptedBackend(lambda request: "def call(function): return function()")
        with pytest.raises(NameError, match="lenght"):
            run(sample, wide(1, 4), backend, [check])
        assert 1 == len(backend.requests)

    def test_a_valid_sibling_beats_a_defect(self, run):
        """Semantics 3: an earlier winner is not lost."""

        def check(text):
            return text == "yes" or lenght(text)  # noqa: F821

        result = run(sample, wide(2), replies({(0, 0): "yes", (1, 0): "no"}), [check])
        assert result.success

    def test_the_model_never_reads_the_name_of_a_python_error(self, run):
        """Semantics 6: it reads the requirement and the reason."""

        def check(text):
            raise KeyError("secret")

        backend = ScriptedBackend(["a", "b"])
        run(sample, MultiTurnStrategy(loop_budget=2), backend, [Requirement("has a name", check=check)])
        told = backend.requests[1].messages[-1].content
        assert "- has a name: it could not be checked\n" in told
        assert "KeyError" not in told
        assert "secret" not in told


class Unprintable(Exception):
    """An exception whose own code is broken."""

    def __str__(self):
        raise RuntimeError("broken")

    __repr__ = __str__


def raise_unprintable(*_):
    raise Unprintable


class TestExceptionsThatCanNotBePrinted:
    def test_of_a_parser(self, run):
        """S17: the attempt is invalid."""
        result = run(wide(1).sample, Action("q", raise_unprintable), None, lambda request: checkpointed("text"))
        assert "it is malformed" == result.best.validations[0].reason

    @pytest.mark.parametrize("decision", ["done", "select"])
    def test_of_a_decision(self, run, decision, monkeypatch):
        """It is the cause of a `SelectionFailed`, as any other."""
        strategy = wide(1)
        monkeypatch.setattr(strategy, decision, raise_unprintable)
        with pytest.raises(SelectionFailed, match="Unprintable") as caught:
            run(sample, strategy, lambda request: checkpointed("yes"))
        assert isinstance(caught.value.__cause__, Unprintable)

    def test_of_an_attempt_and_a_hook(self, run):
        """The result can be shown, with the type."""

        async def backend(request):
            await checkpoint()
            return raise_unprintable() if request.subsample else "no"

        hooks = Hooks()
        hooks.on(IterationFinished)(raise_unprintable)
        result = run(sample, wide(2), backend, hooks=hooks)
        assert "Unprintable" in result.explain()
        assert result.to_json()


class TestAnswersThatAreNestedTooDeeply:
    @pytest.mark.parametrize("kind", ["parser", "check", "async check", "blocking check", "partial check", "key"])
    @pytest.mark.anyio
    async def test_one_is_invalid_and_ends_nothing(self, kind, anyio_backend):
        """Semantics 6: `json.loads` and the like raise a RecursionError for an answer of brackets."""

        def check(text):
            return json.loads(text) == [1]

        async def check_later(text):
            return check(text)

        strategy = wide(1, 2)
        action = Action("q", json.loads) if kind == "parser" else "q"
        reqs = {
            "check": [check],
            "async check": [check_later, check_later],
            "blocking check": [Requirement("is one", check=check, blocking=True)],
            "partial check": [Requirement("is one", check=check, partial=check)],
        }.get(kind, [])
        if kind == "key":
            strategy = MajorityVotingStrategy(concurrency_budget=3, key=lambda text: str(json.loads(text)))
        backend = Streaming(lambda request: "[1]" if request.iteration > 1 else "[" * 100_000)
        with capture_logs():
            result = await strategy.sample(action, None, backend, reqs)
        assert result.success
        assert "[1]" == result.text
        for slice_ in result.slices:
            for complaint in slice_.complaints:
                assert "recursion" not in complaint

    @pytest.mark.anyio
    async def test_a_check_that_samples_itself_ends_at_once(self, anyio_backend):
        """Row 44: with a failed check at every level, each of them would try again, which takes for ever."""
        strategy, requests = wide(1, 3), []

        async def backend(request):
            requests.append(request)
            return "text"

        async def check(text):
            return (await strategy.sample("q", None, backend, [check])).success

        with capture_logs(), pytest.raises(NestedTooDeeply, match="33 calls"):
            await strategy.sample("q", None, backend, [check])
        assert 33 == len(requests)
        assert sampling.current() is None

        async def on_itself(request):
            requests.append(request)
            return (await strategy.sample("q", None, on_itself)).text

        with capture_logs(), pytest.raises(NestedTooDeeply):
            await strategy.sample("q", None, on_itself)
        assert 33 + 33 == len(requests)


class TestScores:
    @pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, 10**400], ids=["nan", "inf", "-inf", "huge"])
    def test_one_that_is_not_finite_makes_its_answer_invalid(self, run, score):
        """Semantics 6: and nothing else."""
        from sampling import BestOfNStrategy, Validation, checks

        def scored(text):
            return Validation(True, score=score if text == "a" else 0.5)

        backend = replies({(0, 0): "a", (1, 0): "b"})
        result = run(sample, BestOfNStrategy(concurrency_budget=2), backend, [scored])
        assert "b" == result.text
        assert ["invalid", "valid"] == [one.outcome for one in result.attempts]
        negated = run(sample, wide(), replies({(0, 0): "a", (1, 0): "a"}), [checks.not_(scored)])
        assert not negated.success

    @pytest.mark.parametrize("kind", ["float32", "float64", "int64"])
    def test_a_score_of_numpy_is_a_score(self, run, kind):
        """A score is anything that `float()` takes."""
        numpy = pytest.importorskip("numpy")
        from sampling import BestOfNStrategy

        backend = replies({(0, 0): "a", (1, 0): "bbb"})
        strategy = BestOfNStrategy(lambda text: getattr(numpy, kind)(len(text)), concurrency_budget=2)
        result = run(sample, strategy, backend, [])
        assert "bbb" == result.text
        assert float is type(result.best.validations[0].score)


class TestDeadlines:
    @pytest.mark.parametrize("breadth", [1, 2])
    @pytest.mark.anyio
    async def test_one_holds_between_attempts_of_a_backend_that_never_awaits(self, breadth, anyio_backend):
        """A request that blocks can't be interrupted, but no other follows."""

        async def backend(request):
            time.sleep(0.01)  # noqa: ASYNC251 - the point of this test
            return Generation("no")

        result = await sample(wide(breadth, 10_000), backend, budget=Budget(deadline_s=0.1))
        assert "deadline" == result.stop_reason
        assert len(result.attempts) < 10_000

    @pytest.mark.anyio
    async def test_no_attempt_begins_after_it(self, anyio_backend):
        """The first attempt takes longer than there is time, and never lets the deadline interrupt it."""

        async def backend(request):
            time.sleep(0.02)  # noqa: ASYNC251 - the point of this test
            return Generation("no")

        result = await sample(wide(1, 3), backend, budget=Budget(deadline_s=0.01))
        assert "deadline" == result.stop_reason
        assert len(result.attempts) < 2

    @pytest.mark.anyio
    async def test_the_callers_scope_ends_a_call_whose_backend_never_awaits(self, anyio_backend):
        """Semantics 10: other tasks and timers get a turn now and then."""

        async def backend(request):
            time.sleep(0.01)  # noqa: ASYNC251 - the point of this test
            return Generation("no")

        with anyio.move_on_after(0.1) as scope:
            await sample(wide(1, 10_000), backend)
        assert scope.cancelled_caught


class TestRequirements:
    def test_one_given_twice_is_checked_once(self, run):
        """Semantics 7: wherever it came from."""

        class Checker:
            calls = 0

            def check(self, text):
                """Be counted."""
                Checker.calls += 1
                return True

        checker = Checker()
        strategy = wide(1, requirements=[checker.check])
        result = run(sample, strategy, lambda request: checkpointed("a"), [checker.check, checker.check])
        assert 1 == Checker.calls == len(result.best.validations)

    @pytest.mark.parametrize(
        "make",
        [
            lambda: checks.length(max_words=3),
            lambda: checks.matches("yes", "agrees"),
            lambda: checks.not_(checks.one_of("no", "maybe")),
            lambda: checks.all_of(checks.length(max_words=3), checks.python_parses()),
            lambda: checks.weighted([(checks.length(max_words=3), 2)], at_least=0.5),
        ],
    )
    def test_a_ready_made_one_made_twice_is_checked_once(self, run, make):
        """Semantics 7: the same arguments make the same requirement, and the model is told its reason once."""
        result = run(sample, wide(1, requirements=[make()]), lambda request: checkpointed("yes"), [make()])
        assert 1 == len(result.attempts[0].validations)

    def test_ready_made_ones_with_other_arguments_are_all_checked(self, run):
        """Semantics 7: equal descriptions alone make no duplicate."""
        reqs = [checks.length(max_words=3), checks.length(max_words=4), *[checks.matches(one, "x") for one in "ab"]]
        result = run(sample, wide(1), lambda request: checkpointed("yes"), reqs)
        assert 4 == len(result.attempts[0].validations)

    def test_a_sentence_and_a_judge_of_it_are_one(self, run):
        """Semantics 7: both ask the same model the same question."""
        backend = ScriptedBackend(["text", "yes"])
        assert run(sample, wide(1), backend, ["is polite", checks.judge("is polite")]).success
        assert 2 == len(backend.requests)

    def test_a_sentence_given_twice_is_judged_once(self, run):
        """Semantics 7: also within one list."""
        backend = ScriptedBackend(["text", "yes"])
        result = run(sample, wide(1), backend, ["is polite", "is polite", Requirement("is polite")])
        assert 1 == len(result.best.validations)

    def test_they_can_be_stated_in_the_first_prompt(self, run):
        """`state_requirements`: so that the model need not learn them from failures."""
        backend = ScriptedBackend(["no", "yes"])
        strategy = MultiTurnStrategy(loop_budget=2, state_requirements=True)
        run(sample, strategy, backend, [Requirement("says yes", check=is_yes), Requirement("is brief", check=len_ok)])
        first, *_, last = [message.content for message in backend.requests[1].messages]
        assert "q\n\nThe answer must meet these requirements:\n- says yes\n- is brief" == first
        assert "- is brief" not in last

    def test_every_tier_states_them_once(self, run):
        """The settings of an escalation apply to its tiers, whatever they are."""
        backend = ScriptedBackend(["no", "yes"])
        strategy = EscalationStrategy([Tier(), Tier()], state_requirements=True)
        run(sample, strategy, backend, [Requirement("says yes", check=is_yes)])
        for request in backend.requests:
            assert 1 == sum(m.content.count("must meet these requirements") for m in request.messages)


def len_ok(text):
    return len(text) < 10
