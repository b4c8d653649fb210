"""Scripted backends, captured events, and a watch that finds broken invariants."""

from urllib.parse import urlsplit

import anyio
import attrs
import pytest

from sampling import IterationFinished, IterationStarted, LoopFinished, RejectionSamplingStrategy, Request, Usage
from sampling.messages import Generation, Message
from sampling.testing import After, CapturedEvents, InvariantBroken, ScriptedBackend, ScriptExhausted, Watch
from sampling.testing.servers import OpenAIServer

REQUEST = Request([Message("user", "q")])


async def call_backend(backend, times=1):
    return [await backend.generate(REQUEST) for _ in range(times)]


class TestScriptedBackend:
    def test_it_replies_in_order(self, run):
        """Answers, generations, delays and errors."""

        async def main():
            backend = ScriptedBackend(["a", After(2.0, Generation("b", Usage(1, 1))), After(1.0, ValueError("c"))])
            answers = await call_backend(backend, 2)
            with pytest.raises(ValueError, match="c"):
                await backend.generate(REQUEST)
            return [answer.text for answer in answers], anyio.current_time(), backend

        texts, now, backend = run(main)
        assert (["a", "b"], 3.0) == (texts, now)
        assert (2, 1, 0, 0) == (len(backend.returned), len(backend.raised), len(backend.cancelled), backend.in_flight)

    def test_it_says_when_the_script_is_too_short(self, run):
        """With an error, because the test is wrong and not the backend."""
        with pytest.raises(ScriptExhausted, match="no reply left for iteration 1"):
            run(call_backend, ScriptedBackend(["a"]), 2)

    def test_it_counts_what_was_cancelled(self, run):
        """All requests are recorded."""

        async def main():
            backend = ScriptedBackend(lambda request: After(9.0, "late"))
            with anyio.move_on_after(1.0):
                await call_backend(backend)
            return backend

        backend = run(main)
        assert [REQUEST] == backend.cancelled
        assert "ScriptedBackend(1 requests, 0 in flight)" == repr(backend)


def test_captured_events_are_sorted_by_kind(run):
    """Names in order, events by type."""
    captured = CapturedEvents()

    async def main():
        await RejectionSamplingStrategy(loop_budget=2).sample(
            "q", None, ScriptedBackend(["no", "yes"]), [lambda text: text == "yes"], hooks=captured
        )

    run(main)
    assert ["LoopStarted", "IterationStarted", "IterationFinished", "Repaired"] == captured.names[:4]
    assert 2 == len(captured.of(IterationFinished))


class TestWatch:
    """Every broken invariant is found. A watch that can't fail proves nothing."""

    @pytest.fixture
    def watch(self, run):
        watch = Watch(ScriptedBackend(["no", "yes"]))
        strategy = RejectionSamplingStrategy(loop_budget=3)
        run(watch.sample, strategy, "q", None, [lambda text: text == "yes"])
        watch.check()
        return watch

    def damaged(self, watch, invariant, message=""):
        with pytest.raises(InvariantBroken, match=f"{invariant}: .*{message}"):
            watch.check()

    def test_an_attempt_that_never_ended(self, watch):
        """I1: an attempt that never ended."""
        watch.events.events.remove(watch.events.of(IterationFinished)[-1])
        self.damaged(watch, "I1", "started")

    def test_an_attempt_that_is_not_on_the_result(self, watch):
        """I1: an attempt that is not on the result."""
        watch.result = attrs.evolve(watch.result, attempts=watch.result.attempts[:1])
        self.damaged(watch, "I1", "recorded")

    def test_an_answer_that_no_record_has(self, watch):
        """I2: an answer that no record has."""
        watch._answered.add("somewhere else")
        self.damaged(watch, "I2", "somewhere else")

    def test_a_winner_that_was_lost(self, watch):
        """I3: a winner that was lost."""
        watch.result = attrs.evolve(watch.result, success=False)
        self.damaged(watch, "I3")

    def test_a_best_that_is_none_of_the_slices(self, watch):
        """I4: a best that is none of the slices."""
        watch.result = attrs.evolve(watch.result, best=attrs.evolve(watch.result.best, usage=Usage(1, 1)))
        self.damaged(watch, "I4")

    def test_an_error_that_is_not_on_the_result(self, run):
        """I5: an error that is not on the result."""
        watch = Watch(ScriptedBackend(lambda request: "no" if request.subsample else RuntimeError("broken")))
        run(watch.sample, RejectionSamplingStrategy(concurrency_budget=2), "q", None, [lambda text: False])
        watch.check()
        watch.result = attrs.evolve(watch.result, errors=())
        self.damaged(watch, "I5")

    def test_a_task_that_outlived_the_call(self):
        """I6: a backend that leaves a task behind."""

        async def main():
            async with anyio.create_task_group() as group:

                async def backend(request):
                    group.start_soon(anyio.sleep, 100)
                    return "yes"

                watch = Watch(backend)
                await watch.sample(RejectionSamplingStrategy(), "q")
                group.cancel_scope.cancel()
                return watch

        self.damaged(anyio.run(main), "I6", "tasks outlived")

    def test_more_at_once_than_allowed(self, watch):
        """I7: more at once than allowed."""
        watch.most_in_flight = 2
        self.damaged(watch, "I7")

    def test_an_id_that_came_twice(self, watch):
        """I8: an id that came twice."""
        for kind in (IterationStarted, IterationFinished):
            event = watch.events.of(kind)[0]
            watch.events.events.insert(watch.events.events.index(event), event)
        watch.result = None
        self.damaged(watch, "I8")

    def test_events_out_of_order(self, watch):
        """I9: events out of order."""
        events = watch.events.events
        events[1], events[2] = events[2], events[1]
        self.damaged(watch, "I9")

    def test_an_end_that_came_twice(self, watch):
        """I9: an end that came twice."""
        watch.events.events.insert(1, watch.events.of(LoopFinished)[0])
        self.damaged(watch, "I9", "exactly once")

    def test_usage_that_does_not_add_up(self, watch):
        """I10: usage that does not add up."""
        watch.result = attrs.evolve(watch.result, usage=Usage(1, 1))
        self.damaged(watch, "I10")


async def test_a_server_says_that_it_closes_the_connection():
    """As servers do for a client that asks for it. Some clients would use the connection again otherwise."""
    asked = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    async with OpenAIServer() as server, await anyio.connect_tcp("127.0.0.1", urlsplit(server.url).port) as client:
        await client.send(asked)
        answer = b"".join([part async for part in client])
    head, _, _ = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
