"""Rounds of attempts as batches: every strategy works, repairs come in the next batch, and prices are half."""

import json
from traceback import TracebackException

import anyio
import attrs
import pytest
import structlog

from sampling import (
    Action,
    Budget,
    BudgetForcingStrategy,
    EscalationStrategy,
    Fallback,
    MultiTurnStrategy,
    Options,
    Priced,
    RejectionSamplingStrategy,
    RepairTemplateStrategy,
    Requirement,
    Retrying,
    fan_out,
    open_fan_out,
)
from sampling.errors import AuthenticationFailed, BadRequest, RateLimited, ServerError, Timeout, Unsupported
from sampling.fanout import BatchEngine
from sampling.strategies import (
    BestOfNStrategy,
    Diverse,
    HedgedSamplingStrategy,
    MajorityVotingStrategy,
    MBRStrategy,
    Tier,
)
from sampling.testing import ScriptedBackend
from sampling.testing.batch_servers import Verdict
from sampling.usage import Price
from tests.fanout.batch.batch_kit import (
    HOUR,
    ONCE,
    PROVIDERS,
    YES,
    batched,
    losing_creations,
    openai,
    paid_twice,
    questions,
    server_of,
    sizes,
)
from tests.faults.journals import InlineJournal


@pytest.fixture(params=PROVIDERS)
def provider(request):
    return PROVIDERS[request.param]


def turns(request):
    return sum(message["role"] == "user" for message in request.body["messages"])


def test_all_first_attempts_are_one_batch(run, provider):
    """F21: the requests of all items that wait at the same time are one batch."""
    server = server_of()
    result = run(batched, provider(server), questions(300))
    assert {"succeeded": 300, "failed": 0, "errored": 0} == result.counts()
    assert [300] == sizes(server)
    assert 300 == server.billed.total()


def test_outcomes_are_in_order_and_belong_to_their_items(run, provider):
    """F2, F21: an answer goes to the request with its id, in whatever order the results are."""
    server = server_of(lambda request: f"yes to {request.prompt}")
    server.mangle = lambda lines: lines[::-1]
    result = run(batched, provider(server), questions(20))
    assert [f"yes to question {number}" for number in range(20)] == [one.result.value for one in result.outcomes]


def test_repairs_are_the_next_batch(run, provider):
    """F21: items that fail are repaired in the next batch, and only those."""
    server = server_of(lambda request: "yes" if turns(request) == 2 or request.prompt.endswith("0") else "no")
    result = run(batched, provider(server), questions(50), strategy=MultiTurnStrategy(loop_budget=3))
    assert {"succeeded": 50, "failed": 0, "errored": 0} == result.counts()
    assert [50, 45] == sizes(server)


def test_breadth_is_several_requests_of_an_item_in_one_batch(run, provider):
    """F21: equal requests of one item have ids of their own, and all that was paid for is counted."""
    server = server_of()
    result = run(batched, provider(server), questions(10), strategy=RejectionSamplingStrategy(concurrency_budget=3))
    assert [30] == sizes(server)
    assert 30 == len(server.billed)
    # A question has two words and an answer one.
    assert 30 * 3 == result.usage.total_tokens
    assert {"succeeded": 10, "failed": 0, "errored": 0} == result.counts()


@pytest.mark.parametrize(
    "strategy",
    [
        RejectionSamplingStrategy(loop_budget=2, concurrency_budget=2),
        RepairTemplateStrategy(loop_budget=2),
        MultiTurnStrategy(loop_budget=2),
        MajorityVotingStrategy(concurrency_budget=3),
        MBRStrategy(concurrency_budget=3),
        BestOfNStrategy(len, concurrency_budget=3),
        EscalationStrategy([Tier(options=Options(model="small")), Tier(options=Options(model="large"))]),
        HedgedSamplingStrategy(typical_s=HOUR / 2, concurrency_budget=2),
        RejectionSamplingStrategy(concurrency_budget=2, variation=Diverse(models=("a", "b"))),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_every_strategy_works_unchanged(run, provider, strategy):
    """F21: a strategy does not know that its requests are in batches."""
    server = server_of(lambda request: f"yes {len(request.custom_id)}")
    result = run(batched, provider(server), questions(4), strategy=strategy, options=Options(max_tokens=50))
    assert {"succeeded": 4, "failed": 0, "errored": 0} == result.counts()
    assert not paid_twice(server)


def test_a_judge_is_asked_in_batches_too(run, provider):
    """F21: a requirement that a model judges uses the backend of the call."""
    server = server_of(lambda request: "yes" if "Requirement:" in request.prompt else "a haiku")
    result = run(batched, provider(server), questions(5), ["mentions rain"])
    assert {"succeeded": 5, "failed": 0, "errored": 0} == result.counts()
    assert [5, 5] == sizes(server)


def test_typed_answers_are_parsed(run, provider):
    """F21: a schema is sent, and the answer is parsed, as it is online."""
    server = server_of(lambda request: json.dumps({"name": request.prompt}))

    @attrs.frozen
    class Thing:
        name: str

    actions = [Action(f"thing {number}", parser=json.loads) for number in range(3)]
    result = run(batched, provider(server), actions, ())
    assert [{"name": f"thing {number}"} for number in range(3)] == [one.result.value for one in result.outcomes]
    assert Thing(**result.outcomes[0].result.value)


def test_the_responses_api_works_too(run):
    """F21: batches of `/v1/responses`."""
    server = server_of()
    result = run(batched, openai(server, endpoint="responses"), questions(3))
    assert {"succeeded": 3, "failed": 0, "errored": 0} == result.counts()
    assert "/v1/responses" == server.batches[0].fields["endpoint"]


def test_each_model_has_batches_of_its_own(run):
    """F21: OpenAI refuses a batch with two models."""
    server = server_of()

    async def both():
        backend = openai(server)
        async with anyio.create_task_group() as group:
            for model in ("a", "b"):
                group.start_soon(lambda model=model: batched(backend, questions(3), options=Options(model=model)))

    run(both)
    assert [3, 3] == sizes(server)
    assert ["completed", "completed"] == [batch.status for batch in server.batches]


class TestLimits:
    def test_a_batch_is_split_at_the_limits(self, run, provider):
        """F21: by the number of requests."""
        server = server_of()
        result = run(batched, provider(server), questions(25), engine=BatchEngine(max_batch_requests=10))
        assert 25 == result.counts()["succeeded"]
        assert [10, 10, 5] == sizes(server)

    def test_a_batch_is_split_by_its_size(self, run, provider):
        """F21: and by its bytes."""
        server = server_of()
        items = [f"{number} {'x' * 1000}" for number in range(10)]
        result = run(batched, provider(server), items, engine=BatchEngine(max_batch_bytes=4000))
        assert 10 == result.counts()["succeeded"]
        assert [3, 3, 3, 1] == sizes(server)

    def test_the_window_replaces_max_concurrency(self, run, provider):
        """F3, F21: the engine states how many items are in flight, and the source is read no further."""
        server = server_of()
        read = []

        def items():
            for number in range(100):
                read.append(number)
                yield str(number)

        async def first_batch():
            engine = BatchEngine(window=40)
            async with open_fan_out(ONCE, items(), None, provider(server), [YES], engine=engine, max_concurrency=2):
                await anyio.sleep(HOUR / 2)
                return len(read), sizes(server)

        assert (40, [40]) == run(first_batch)

    def test_a_failing_item_does_not_hold_up_the_window(self, run):
        """F12, F21: outcomes that wait for an earlier item are buffered up to another window."""
        server = server_of(lambda request: "yes" if turns(request) == 2 or not request.prompt.endswith(" 0") else "no")

        async def stream():
            engine = BatchEngine(window=1200)
            backend, strategy = openai(server), MultiTurnStrategy(loop_budget=2)
            async with open_fan_out(strategy, questions(2400), None, backend, [YES], engine=engine) as outcomes:
                return [outcome.index async for outcome in outcomes]

        assert list(range(2400)) == run(stream)
        # The repair of the first item is in the second batch.
        assert [1200, 1200, 1] == sizes(server)

    def test_a_queue_limit_of_the_account_makes_batches_smaller(self, run):
        """F21: OpenAI refuses what is too much at once, so it is sent in parts, and nothing is lost."""
        server = server_of()
        server.max_enqueued = 30
        result = run(batched, openai(server), questions(100))
        assert 100 == result.counts()["succeeded"]
        assert max(sizes(server)) <= 30
        assert not paid_twice(server)


@attrs.define
class Slow:
    """A transport over a slow line."""

    transport: object

    async def open(self, request):
        await anyio.sleep(len(request.body) / 75_000)
        return await self.transport.open(request)

    async def aclose(self):
        await self.transport.aclose()


class TestErrors:
    def test_expired_requests_are_sent_again(self, run, provider):
        """F21: partial expiry costs time and nothing else."""
        seen = []

        def answer(request):
            seen.append(request.prompt)
            return Verdict("expired") if seen.count(request.prompt) == 1 and request.prompt.endswith("3") else "yes"

        server = server_of(answer)
        result = run(batched, provider(server), questions(10))
        assert 10 == result.counts()["succeeded"]
        assert [10, 1] == sizes(server)

    def test_a_request_that_always_expires_is_a_timeout(self, run, provider):
        """F21: after `max_tries` batches."""
        server = server_of(lambda _: Verdict("expired"))
        result = run(batched, provider(server), questions(2), on_error="continue", outage_grace_s=0)
        assert {"Timeout"} == {type(one.error).__name__ for one in result.outcomes}
        assert [2, 2, 2] == sizes(server)

    def test_transient_errors_are_sent_again(self, run, provider):
        """F21: a server error of one request is no reason to give up."""
        seen = []

        def answer(request):
            seen.append(request.prompt)
            return Verdict(status=500) if seen.count(request.prompt) == 1 else "yes"

        server = server_of(answer)
        result = run(batched, provider(server), questions(4))
        assert 4 == result.counts()["succeeded"]
        assert [4, 4] == sizes(server)

    @pytest.mark.parametrize(
        ("status", "kind", "expected"),
        [
            (400, "invalid_request_error", BadRequest),
            (401, "authentication_error", AuthenticationFailed),
            (429, "rate_limit_error", RateLimited),
            (500, "api_error", ServerError),
        ],
    )
    def test_errors_are_those_of_online_requests(self, run, provider, status, kind, expected):
        """F21: a refused request raises the same error as it does online."""
        server = server_of(lambda _: Verdict(status=status, error={"type": kind, "message": "no"}))
        with pytest.raises(expected):
            run(batched, provider(server), questions(3), engine=BatchEngine(max_tries=1))

    def test_a_refused_line_does_not_take_the_others_along(self, run):
        """F21: OpenAI refuses a whole file for one line, so the others are sent again without it."""
        server = server_of()
        real = server.handle

        def refuse_one(method, target, headers, body):
            status, answer = real(method, target, headers, body)
            if method == "POST" and target.startswith("/v1/batches") and len(server.batches) == 1:
                batch = server.batches[0]
                batch.status, batch.requests = "failed", []
                batch.errors = [{"code": "invalid_value", "message": "no", "line": 3, "param": None}]
            return status, answer

        server.handle = refuse_one
        result = run(batched, openai(server), questions(5), on_error="continue")
        # Trio starts the items in any order, so the third line may be about any of them.
        assert {"succeeded": 4, "failed": 0, "errored": 1} == result.counts()
        assert [BadRequest] == [type(one.error) for one in result.outcomes if one.error]

    def test_outages_while_polling_are_waited_out(self, run, provider):
        """F18, F21: a server that is down for hours does not end the run, and the batch is not sent again."""
        server = server_of()

        def down(method, path):
            return (503, {"error": {"message": "down"}}) if 100 < anyio.current_time() < 5 * HOUR else None

        server.intercept = down
        result = run(batched, provider(server), questions(10))
        assert 10 == result.counts()["succeeded"]
        assert [10] == sizes(server)

    def test_a_server_that_refuses_to_create_is_asked_again(self, run, provider):
        """F21: a rate limit on creating batches costs time and nothing else."""
        server = server_of()
        refused = []

        def limit(method, path):
            if method == "POST" and path.endswith("/batches") and len(refused) < 3:
                refused.append(path)
                return 429, {"error": {"type": "rate_limit_error", "message": "slow down"}}
            return None

        server.intercept = limit
        assert 5 == run(batched, provider(server), questions(5)).counts()["succeeded"]
        assert [5] == sizes(server)

    def test_a_full_queue_is_waited_for_as_long_as_a_batch_may_take(self, run, provider):
        """F18, F21: an account may have room for one batch only, and the next one waits for hours."""
        server = server_of(latency_s=5 * HOUR)

        def limit(method, path):
            is_creation = method == "POST" and path.endswith("/batches")
            if is_creation and server.batches and anyio.current_time() < server.batches[-1].ready:
                return 429, {"error": {"type": "rate_limit_error", "message": "too many requests in the queue"}}
            return None

        server.intercept = limit
        result = run(batched, provider(server), questions(20), engine=BatchEngine(max_batch_requests=10))
        assert 20 == result.counts()["succeeded"]
        assert [10, 10] == sizes(server)

    def test_an_outage_between_two_batches_is_waited_out(self, run, provider):
        """F18, F21: a server that has created a batch before is waited for, also to create the next one."""
        server = server_of(lambda request: "yes" if turns(request) == 2 else "no")

        def down(method, path):
            is_down = method == "POST" and server.batches and anyio.current_time() < 5 * HOUR
            return (503, {"error": {"message": "down"}}) if is_down else None

        server.intercept = down
        result = run(batched, provider(server), questions(10), strategy=MultiTurnStrategy(loop_budget=2))
        assert 10 == result.counts()["succeeded"]
        assert ([10, 10], {}) == (sizes(server), paid_twice(server))

    def test_a_lost_answer_to_the_creation_finds_the_batch(self, run, provider):
        """F21: the batch exists, so it is looked for and not created again."""
        server = losing_creations(server_of())
        result = run(batched, provider(server), questions(5))
        assert 5 == result.counts()["succeeded"]
        assert [5] == sizes(server)
        assert not paid_twice(server)

    def test_a_wrong_key_ends_the_run_at_once(self, run, provider):
        """F21: nothing is tried again that can't succeed."""
        server = server_of()
        server.intercept = lambda _method, _path: (401, {"error": {"type": "authentication_error", "message": "no"}})
        with pytest.raises(AuthenticationFailed):
            run(batched, provider(server), questions(5))
        assert 1 == len(server.calls)

    def test_a_batch_that_takes_too_long_is_cancelled(self, run, provider):
        """F21: what is finished by then is used, and the other items end with a timeout."""
        server = server_of(latency_s=100 * HOUR)
        engine = BatchEngine(max_wait_s=50 * HOUR, cancel_grace_s=1)
        result = run(batched, provider(server), questions(10), engine=engine, on_error="continue", outage_grace_s=0)
        assert {"succeeded": 5, "failed": 0, "errored": 5} == result.counts()
        assert all(isinstance(one.error, Timeout) for one in result.outcomes if one.error)

    @pytest.mark.parametrize("status", [400, 409, 503])
    def test_a_refused_cancellation_does_not_lose_the_answers(self, run, provider, status):
        """F21: the batch may have ended a moment before it was cancelled, or the server is down."""
        server = server_of(latency_s=100 * HOUR)

        def end_instead(method, path):
            if not path.endswith("/cancel") or server.batches[0].ended:
                return None
            server._end(server.batches[0], 10, "completed")
            return status, {"error": {"message": "it has ended"}}

        server.intercept = end_instead
        engine = BatchEngine(max_wait_s=50 * HOUR)
        result = run(batched, provider(server), questions(10), engine=engine, on_error="continue")
        assert 10 == result.counts()["succeeded"]

    def test_a_cancellation_is_tried_again_while_the_server_is_down(self, run, provider):
        """F21: else the rest of the batch would be paid for and not used."""
        server, refused = server_of(latency_s=100 * HOUR), []

        def intercept(method, path):
            if path.endswith("/cancel") and len(refused) < 3:
                refused.append(path)
                return 503, {"error": {"message": "down"}}
            return None

        server.intercept = intercept
        engine = BatchEngine(max_wait_s=50 * HOUR)
        result = run(batched, provider(server), questions(10), engine=engine, on_error="continue", outage_grace_s=0)
        assert {"succeeded": 5, "failed": 0, "errored": 5} == result.counts()
        assert ["cancelled"] == [batch.status for batch in server.batches]

    def test_requests_of_a_batch_that_took_too_long_need_no_lines(self, run, tmp_path):
        """F21: some servers write no line for a request that was not run, and it is not sent again."""
        server = server_of(latency_s=100 * HOUR)
        server.mangle = lambda lines: [line for line in lines if b"batch_cancelled" not in line]
        settings = {"engine": BatchEngine(max_wait_s=50 * HOUR), "journal": InlineJournal(tmp_path / "run.db")}
        result = run(batched, openai(server), questions(10), on_error="continue", outage_grace_s=0, **settings)
        assert {"succeeded": 5, "failed": 0, "errored": 5} == result.counts()
        assert all(isinstance(one.error, Timeout) for one in result.outcomes if one.error)
        assert ([10], ()) == (sizes(server), result.maybe_billed_twice)

    def test_expired_requests_need_no_lines(self, run, tmp_path):
        """F21: they were not run, so sending them again is no second payment."""
        server = server_of(lambda _: Verdict("expired") if len(server.batches) == 1 else "yes")
        server.mangle = lambda lines: [line for line in lines if b"batch_expired" not in line]
        result = run(batched, openai(server), questions(3), journal=InlineJournal(tmp_path / "run.db"))
        assert (3, ()) == (result.counts()["succeeded"], result.maybe_billed_twice)
        assert [3, 3] == sizes(server)

    def test_a_batch_that_is_not_found_for_a_moment_is_not_sent_again(self, run, provider):
        """F21: a list that lags behind, or a gateway, may answer 404 for a batch that is being paid for."""
        server, refused = server_of(), []

        def intercept(method, path):
            if method == "GET" and path.split("/")[-2] == "batches" and len(refused) < 3:
                refused.append(path)
                return 404, {"error": {"message": "no such batch"}}
            return None

        server.intercept = intercept
        assert 5 == run(batched, provider(server), questions(5)).counts()["succeeded"]
        assert ([5], 3) == (sizes(server), len(refused))

    @pytest.mark.parametrize(
        ("status", "message", "times", "expected"),
        [
            (404, "Input file not found", 1, ([3], 2)),
            (400, "Cannot find file {file}, or project p does not have access to it.", 3, ([3], 4)),
            (404, "Invalid URL (POST /v1/batches)", 9, ([], 4)),
            (400, "Invalid value: 'endpoint'.", 9, ([], 1)),
        ],
    )
    def test_a_file_that_is_not_found_for_a_moment_is_tried_again(self, run, status, message, times, expected):
        """F21: OpenAI may not find a file that was just uploaded, and the run is not over because of it."""
        server, created = server_of(), []

        def intercept(method, path):
            if method == "POST" and path.endswith("/batches"):
                created.append(path)
                if len(created) <= times:
                    return status, {"error": {"message": message.format(file=next(iter(server.files)))}}
            return None

        server.intercept = intercept
        run(batched, openai(server), questions(3), on_error="continue")
        assert expected == (sizes(server), len(created))
        assert 1 == len(server.files)

    def test_a_large_batch_has_the_time_to_be_sent(self, run, provider, tmp_path):
        """F21: over 1 Mbit/s, 10 MB take longer than the server has time to create a small batch."""
        server = server_of()
        direct = server.transport
        server.transport = lambda: Slow(direct())
        items = [f"{number} {'x' * 500_000}" for number in range(20)]
        result = run(batched, provider(server), items, journal=InlineJournal(tmp_path / "run.db"))
        assert (20, ()) == (result.counts()["succeeded"], result.maybe_billed_twice)
        assert [20] == sizes(server)

    def test_a_backend_without_batches_is_refused(self, run):
        """F21: the error says what the engine needs."""
        with pytest.raises(Unsupported, match="OpenAIBackend or an AnthropicBackend"):
            run(batched, ScriptedBackend(["yes"]), questions(1))


class TestHostileResults:
    """F21: whatever the results contain, every item ends, and no answer goes to the wrong one."""

    @pytest.mark.parametrize(
        "mangle",
        [
            lambda lines: [b"garbage", b"{", b"[]", b"null", b"\xff\xfe", *lines],
            lambda lines: [*lines, lines[0]],
            lambda lines: [*lines, lines[0].replace(b'"custom_id": "', b'"custom_id": "x')],
            lambda lines: [*lines, b'{"custom_id": 7}', b'{"custom_id": "a", "result": 3, "response": 4}'],
            lambda lines: [*lines, b'{"custom_id": "a", "result": {"type": []}, "error": {"code": {}}}'],
            lambda lines: [*lines, b'{"custom_id": ' + b"[" * 5000 + b"]" * 5000 + b"}"],
            lambda lines: [b"", b" ", *lines, b""],
        ],
    )
    def test_lines_that_make_no_sense_are_skipped(self, run, provider, mangle):
        """F21: the answers of the other lines count."""
        server = server_of(lambda request: f"yes to {request.prompt}")
        server.mangle = mangle
        result = run(batched, provider(server), questions(5))
        assert [f"yes to question {number}" for number in range(5)] == [one.result.value for one in result.outcomes]
        assert [5] == sizes(server)

    def test_a_line_that_can_not_be_read_is_the_error_of_its_request(self, run, provider):
        """F21: it was paid for, so it is not sent again in silence."""
        server = server_of()
        server.mangle = lambda lines: [lines[0].replace(b"yes", b"yes\xff"), *lines[1:]]
        result = run(batched, provider(server), questions(3), on_error="continue", outage_grace_s=0)
        # Trio starts the items in any order, so the first line may be about any of them.
        assert {"succeeded": 2, "failed": 0, "errored": 1} == result.counts()
        assert ["MalformedResponse"] == [type(one.error).__name__ for one in result.outcomes if one.error]
        assert [3] == sizes(server)

    def test_a_second_line_about_a_request_changes_nothing(self, run, provider):
        """F21: the first one counts."""
        server = server_of()
        server.mangle = lambda lines: [*lines, *[line.replace(b"yes", b"no!") for line in lines]]
        assert ["yes"] * 3 == [one.result.value for one in run(batched, provider(server), questions(3)).outcomes]

    def test_missing_lines_are_sent_again(self, run, provider):
        """F21: a request without a reply is sent again."""
        server = server_of()
        server.mangle = lambda lines: lines[1:] if len(server.batches) == 1 else lines
        assert 5 == run(batched, provider(server), questions(5)).counts()["succeeded"]
        assert [5, 1] == sizes(server)

    @pytest.mark.parametrize(
        "cut",
        [lambda lines: [], lambda lines: lines[:2], lambda lines: [*lines[:-1], lines[-1][:60]]],
        ids=["empty", "half", "torn"],
    )
    @pytest.mark.parametrize("times", [1, 3])
    def test_results_that_are_not_whole_are_read_again(self, run, provider, cut, times):
        """F21: the answers were paid for, and a moment later the file may be whole."""
        server, reads = server_of(), []

        def mangle(lines):
            reads.append(lines)
            return cut(lines) if len(reads) <= times else lines

        server.mangle = mangle
        result = run(batched, provider(server), questions(5))
        assert 5 == result.counts()["succeeded"]
        assert ([5], {}) == (sizes(server), paid_twice(server))
        assert times + 1 == len(reads)

    def test_results_that_are_not_there_yet_are_read_again(self, run, provider):
        """F21: a file may be listed before it can be read."""
        server, refused = server_of(), []

        def intercept(method, path):
            if path.endswith(("/content", "/results")) and len(refused) < 3:
                refused.append(path)
                return 404, {"error": {"message": "no such file"}}
            return None

        server.intercept = intercept
        assert 5 == run(batched, provider(server), questions(5)).counts()["succeeded"]
        assert ([5], {}, 3) == (sizes(server), paid_twice(server), len(refused))

    @pytest.mark.parametrize("status", [404, 410])
    def test_results_that_are_gone_are_asked_for_again(self, run, provider, tmp_path, status):
        """F21: files are deleted after a month, and a journal that waits for them would never end."""
        server = server_of()

        def intercept(method, path):
            is_gone = path.endswith(("/content", "/results")) and len(server.batches) == 1
            return (status, {"error": {"message": "no such file"}}) if is_gone else None

        server.intercept = intercept
        result = run(batched, provider(server), questions(5), journal=InlineJournal(tmp_path / "run.db"))
        assert (5, (0, 1, 2, 3, 4)) == (result.counts()["succeeded"], result.maybe_billed_twice)
        assert [5, 5] == sizes(server)

    def test_a_byte_order_mark_is_skipped(self, run, provider):
        """F21: the first answer was paid for like the others."""
        server = server_of()
        server.mangle = lambda lines: [b"\xef\xbb\xbf" + lines[0], *lines[1:]]
        assert 5 == run(batched, provider(server), questions(5)).counts()["succeeded"]
        assert ([5], {}) == (sizes(server), paid_twice(server))

    def test_a_request_whose_line_can_not_be_read_may_be_billed_twice(self, run, provider, tmp_path):
        """F21: if it is asked again after all, the run says so."""
        server = server_of()
        server.mangle = lambda lines: [*lines[:-1], lines[-1][:60]] if len(server.batches) == 1 else lines
        result = run(batched, provider(server), questions(5), journal=InlineJournal(tmp_path / "run.db"))
        assert 5 == result.counts()["succeeded"]
        assert 1 == len(result.maybe_billed_twice) == len(paid_twice(server))

    def test_a_huge_line_is_the_error_of_its_request(self, run, provider):
        """F21: it is not held in memory, and the other lines count."""
        server = server_of(lambda request: "yes" + "!" * 100_000 * request.prompt.endswith("2"))
        backend = provider(server, max_response_bytes=20_000)
        result = run(batched, backend, questions(4), on_error="continue", outage_grace_s=0)
        assert ["succeeded", "succeeded", "errored", "succeeded"] == [one.status for one in result.outcomes]
        assert "ResponseTooLarge" == type(result.outcomes[2].error).__name__


def ask_big(plan, subsample, attempt):
    """Ask another model, in code that nothing can see into."""
    return attrs.evolve(plan, options=Options(model="big", max_tokens=10))


class PricedByModel(Priced):
    """Prices that depend on the model, as those of a list. Nothing costs anything in the end."""

    def __init__(self, backend, prices):
        super().__init__(backend, Price(0.0, 0.0))
        self.prices = prices

    def price_of(self, model):
        return self.prices[model]


class TestPrices:
    PRICE = Price(10.0, 100.0)

    def test_a_batch_costs_half(self, run, provider):
        """F21: the cost of an answer is that of a batch, and a request that is sent at once costs the whole."""
        server = server_of()
        result = run(batched, Priced(provider(server), self.PRICE), questions(10))
        assert 10 * (2 * 10 + 1 * 100) / 1e6 / 2 == pytest.approx(result.usage.cost)

    def test_losers_are_counted_at_batch_prices(self, run, provider):
        """F21: breadth is paid for, won or lost."""
        server = server_of()
        strategy = RejectionSamplingStrategy(concurrency_budget=2)
        result = run(batched, Priced(provider(server), self.PRICE), questions(10), strategy=strategy)
        assert 20 * (2 * 10 + 1 * 100) / 1e6 / 2 == pytest.approx(result.usage.cost)

    def test_a_budget_is_reserved_before_a_batch_is_sent(self, run, provider):
        """F19, F21: what a batch may cost at most never exceeds the budget."""
        server = server_of()
        # Half of 100 output tokens at 100 per million, and of the prompt.
        most = (100 * 100 + 3 * 10) / 1e6 / 2
        budget = Budget(cost=10.5 * most)
        backend = Priced(provider(server), self.PRICE)
        result = run(batched, backend, questions(200), budget=budget, options=Options(max_tokens=100))
        assert 200 == result.counts()["succeeded"]
        assert 10 == sizes(server)[0]
        assert result.usage.cost <= budget.cost

    def test_a_budget_is_reserved_at_the_price_of_an_expensive_fallback(self, run, provider):
        """F19, F21: the first backend is cheap and refuses everything, so the other one answers."""
        server = server_of()
        refused = Verdict(status=400, error={"type": "invalid_request_error", "message": "no"})
        refusing = provider(server_of(lambda _: refused))
        backend = Fallback(Priced(refusing, Price(0.1, 1.0)), Priced(provider(server), self.PRICE))
        budget = Budget(cost=10.5 * (10 * 100 + 3 * 10) / 1e6 / 2)
        settings = {"budget": budget, "options": Options(max_tokens=10)}
        result = run(batched, backend, questions(100), **settings)
        assert 10 == sizes(server)[0]
        assert 0 < result.usage.cost <= budget.cost

    @pytest.mark.parametrize(
        ("strategy", "cheap"),
        [
            (EscalationStrategy([Tier(), Tier(options=Options(model="big"))]), 50),
            (EscalationStrategy([Tier(strategy=RejectionSamplingStrategy(variation=Diverse(models=["big"])))]), None),
            (RejectionSamplingStrategy(variation=ask_big), None),
        ],
        ids=["tier", "variation", "function"],
    )
    def test_a_budget_is_reserved_at_the_price_of_each_model(self, run, provider, strategy, cheap):
        """F19, F21: the expensive model of an escalation keeps within the budget, and holds up no others."""
        server = server_of(lambda request: "yes" if request.body["model"] == "big" else "no")
        backend = PricedByModel(provider(server), {"small": Price(0.1, 1.0), "big": self.PRICE})
        budget = Budget(cost=10.5 * (10 * 100 + 3 * 10) / 1e6 / 2)
        settings = {"budget": budget, "options": Options(max_tokens=10, model="small"), "strategy": strategy}
        assert 50 == run(batched, backend, questions(50), **settings).counts()["succeeded"]
        first = {batch.requests[0].body["model"]: len(batch.requests) for batch in reversed(server.batches)}
        assert (cheap, True) == (first.get("small"), first["big"] <= 10)

    def test_a_spent_budget_ends_the_run(self, run, provider):
        """F19, F21: the rest stays open."""
        server = server_of(lambda _: "yes " * 100)
        budget = Budget(tokens=2_000)
        result = run(batched, provider(server), questions(100), budget=budget, options=Options(max_tokens=100))
        assert "budget" == result.stop_reason
        assert server.billed.total() < 25

    def test_a_budget_without_max_tokens_is_refused(self, run, provider):
        """F21: the message says what is missing."""
        with pytest.raises(ValueError, match="max_tokens"):
            run(batched, provider(server_of()), questions(1), budget=Budget(tokens=10))


def test_layers_work_around_it(run, provider):
    """F21: retries are in later batches."""
    seen = []

    def answer(request):
        seen.append(request.prompt)
        return "yes" if len(seen) > 2 else Verdict(status=529, error={"type": "overloaded_error", "message": "busy"})

    server = server_of(answer)
    backend = Retrying(provider(server), attempts=5)
    result = run(batched, backend, questions(1), engine=BatchEngine(max_tries=1))
    assert 1 == result.counts()["succeeded"]
    assert [1, 1, 1] == sizes(server)


def test_polls_grow_apart(run, provider):
    """F21: from `poll_interval_s` to `max_poll_interval_s`."""
    server = server_of()
    times = []
    server.intercept = lambda method, path: times.append(anyio.current_time()) if path.endswith("_1") else None
    engine = BatchEngine(linger_s=0, poll_interval_s=10, max_poll_interval_s=100)
    run(batched, provider(server), questions(3), engine=engine)
    gaps = [round(later - earlier, 3) for earlier, later in zip([0.0, *times], times, strict=False)]
    assert [10, 15, 22.5, 33.75, 50.625, 75.938, 100, 100] == gaps[:8]
    assert 3600 <= times[-1] <= 3700


def test_the_key_is_in_no_traceback(run, provider):
    """F21: also not in the local variables of a frame."""
    server = server_of()
    server.intercept = lambda _method, _path: (401, {"error": {"type": "authentication_error", "message": "no"}})
    try:
        run(batched, provider(server), questions(1))
    except AuthenticationFailed as error:
        shown = "".join(TracebackException.from_exception(error, capture_locals=True).format())
        assert "AuthenticationFailed" in shown
        assert "Bearer" not in shown
        assert "'x-api-key'" not in shown


def test_progress_reports_every_batch(run, provider):
    """F21: `on_progress` gets the state of each batch."""
    server = server_of(lambda request: "yes" if turns(request) == 2 else "no")
    seen = []
    engine = BatchEngine(on_progress=seen.append)
    run(batched, provider(server), questions(7), strategy=MultiTurnStrategy(loop_budget=2), engine=engine)
    assert [(1, 7, 7), (2, 7, 7)] == [(one.number, one.requests, one.done) for one in seen if one.ended]
    assert "created" == seen[0].status


def test_other_backends_are_asked_at_once(run, provider):
    """F21: only the backend of the run has batches."""
    server = server_of()
    judge = ScriptedBackend(lambda _: "yes")

    async def ask(text, view):
        return (await view.ask([view.context.messages[0]], backend=judge)).text == "yes"

    result = run(batched, provider(server), questions(3), [Requirement("the other one agrees", ask)])
    assert 3 == result.counts()["succeeded"]
    assert 3 == len(judge.requests)
    assert [3] == sizes(server)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("window", 0),
        ("linger_s", -1),
        ("poll_interval_s", 0),
        ("max_wait_s", float("nan")),
        ("max_tries", 0),
        ("max_batch_requests", 0),
        ("max_batch_bytes", "64"),
        ("cancel_on_exit", 1),
        ("on_progress", 3),
    ],
)
def test_settings_are_checked(setting, value):
    """F21: a wrong setting is named."""
    with pytest.raises((ValueError, TypeError), match=setting):
        BatchEngine(**{setting: value})


def test_budget_forcing_works(run):
    """F21: a strategy that continues texts."""
    server = server_of(lambda _: "yes")
    result = run(
        batched, openai(server), questions(2), strategy=BudgetForcingStrategy(), options=Options(max_tokens=50)
    )
    assert 2 == result.counts()["succeeded"]


def test_sequential_runs_are_the_same(run, provider):
    """F1, F21: a window of one gives the same outcomes, in more batches."""
    server = server_of(lambda request: f"yes to {request.prompt}")
    one = run(batched, provider(server), questions(3), engine=BatchEngine(window=1))
    many = run(batched, provider(server), questions(3))
    assert [outcome.result.value for outcome in one.outcomes] == [outcome.result.value for outcome in many.outcomes]
    assert [1, 1, 1, 3] == sizes(server)


def test_no_items_send_nothing(run, provider):
    """F9, F21: not even a list of batches."""
    server = server_of()
    assert "completed" == run(fan_out, ONCE, [], None, provider(server), engine=BatchEngine()).status
    assert not server.calls


def test_log_lines_of_a_batch_name_no_item(run, provider):
    """F4, F21: a batch works for many items, so its lines have the ids of none."""
    server = server_of()
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        run(batched, provider(server), questions(3))
    created = [line for line in lines if line["event"] == "batch_created"]
    assert 1 == len(created)
    assert "item_id" not in created[0]
