"""Results of batches that are late, can't be read, or belong to a batch that failed."""

import json

import anyio
import attrs
import pytest

from sampling import Options, Priced
from sampling.errors import FatalError, QuotaExhausted, ServerError
from sampling.fanout import BatchEngine
from sampling.testing.batch_servers import Verdict
from sampling.usage import Price
from tests.fanout.batch.batch_kit import (
    HOUR,
    PROVIDERS,
    batched,
    losing_creations,
    openai,
    paid_twice,
    questions,
    server_of,
    sizes,
)
from tests.faults.journals import InlineJournal

GZIP = {"content-encoding": "gzip"}
PAGE = {"content-type": "text/html; charset=utf-8"}
ALL_ERRORS = {"on_error": "continue", "outage_grace_s": 0}


@pytest.fixture(params=PROVIDERS)
def provider(request):
    return PROVIDERS[request.param]


@attrs.define
class Proxy:
    """A transport that adds headers to files of results."""

    transport: object
    headers: dict

    async def open(self, request):
        response = await self.transport.open(request)
        if self.headers and request.url.endswith(("/content", "/results")):
            return attrs.evolve(response, headers=self.headers)
        return response

    async def aclose(self):
        await self.transport.aclose()


def with_headers(server, headers):
    """Send these headers with files of results."""
    direct = server.transport
    server.transport = lambda: Proxy(direct(), headers)


def ending(server, **changes):
    """Change batches of OpenAI's API when they have ended."""
    handle = server.handle

    def changed(method, target, headers, body):
        status, answer = handle(method, target, headers, body)
        fields = json.loads(answer) if "/batches/" in target else {}
        if fields.get("status") in {"completed", "cancelled", "expired"}:
            answer = json.dumps({**fields, **changes}).encode()
        return status, answer

    server.handle = changed
    return server


def problem(code, line=None):
    return {"object": "list", "data": [{"code": code, "message": "no", "line": line, "param": None}]}


@pytest.mark.parametrize("headers", [GZIP, PAGE], ids=["compressed", "page"])
def test_a_file_that_can_not_be_read_is_not_paid_for_again(run, provider, tmp_path, headers):
    """F21: the run ends with an error, and a resume reads the results once the server sends them as they are."""
    server, headers = server_of(), dict(headers)
    with_headers(server, headers)
    with pytest.raises(FatalError, match="can't be read"):
        run(batched, provider(server), questions(3), journal=InlineJournal(tmp_path / "run.db"))
    assert [3] == sizes(server)
    headers.clear()
    for batch in server.batches:
        batch.ready -= HOUR
    result = run(batched, provider(server), questions(3), journal=InlineJournal(tmp_path / "run.db"))
    assert (3, ()) == (result.counts()["succeeded"], result.maybe_billed_twice)
    assert ([3], {}) == (sizes(server), paid_twice(server))


def test_a_page_instead_of_results_is_read_again(run, provider):
    """F21: a proxy shows its page for a moment only."""
    server, headers = server_of(), dict(PAGE)
    with_headers(server, headers)
    server.mangle = lambda lines: headers.clear() or lines
    assert 3 == run(batched, provider(server), questions(3)).counts()["succeeded"]
    assert [3] == sizes(server)


def test_files_that_are_named_late_are_found(run):
    """F21: OpenAI may show a batch as completed before it shows the file of its answers."""
    server, polls = server_of(), []
    handle = server.handle

    def late(method, target, headers, body):
        status, answer = handle(method, target, headers, body)
        fields = json.loads(answer) if "/batches/" in target else {}
        if fields.get("status") == "completed" and len(polls) < 3:
            polls.append(target)
            answer = json.dumps({**fields, "output_file_id": None}).encode()
        return status, answer

    server.handle = late
    assert 5 == run(batched, openai(server), questions(5)).counts()["succeeded"]
    assert ([5], {}, 3) == (sizes(server), paid_twice(server), len(polls))


def test_an_error_that_can_not_be_copied_is_that_of_the_requests(run, provider):
    """F21: such as one of a transport of your own. It does not end the run with another error."""

    class Broken(Exception):
        def __init__(self, first, second):
            super().__init__(f"{first} {second}")

    def intercept(method, path):
        if method == "GET":
            raise Broken("no", "wire")

    server = server_of()
    server.intercept = intercept
    result = run(batched, provider(server), questions(3), **ALL_ERRORS)
    assert ["no wire"] * 3 == [str(one.error) for one in result.outcomes]


def test_answers_of_a_batch_that_failed_are_used(run):
    """F21: a batch may fail when a part of it was run, and that part was paid for."""
    server = ending(server_of(), status="failed", errors=problem("billing_hard_limit_reached"))
    server.mangle = lambda lines: lines[:3]
    ending(server, request_counts={"total": 5, "completed": 3, "failed": 0})
    result = run(batched, openai(server), questions(5), **ALL_ERRORS)
    assert {"succeeded": 3, "failed": 0, "errored": 2} == result.counts()
    assert {QuotaExhausted} == {type(one.error) for one in result.outcomes if one.error}
    assert [5] == sizes(server)


def test_a_batch_that_failed_without_a_reason_is_sent_again(run, tmp_path):
    """F21: nothing of it was billed, and the error says what happened."""
    nothing = {"output_file_id": None, "request_counts": {"total": 0, "completed": 0, "failed": 0}}
    server = ending(server_of(), status="failed", **nothing)
    settings = {**ALL_ERRORS, "journal": InlineJournal(tmp_path / "run.db")}
    result = run(batched, openai(server), questions(2), **settings)
    assert {ServerError} == {type(one.error) for one in result.outcomes}
    assert all("the batch failed at the provider" in str(one.error) for one in result.outcomes)
    assert ([2, 2, 2], ()) == (sizes(server), result.maybe_billed_twice)


@pytest.mark.parametrize("errors", [None, problem("invalid_value"), problem("invalid_value", 1)])
def test_requests_that_were_not_run_cost_nothing(run, errors):
    """F21: their tokens are not even estimated."""
    nothing = {"output_file_id": None, "request_counts": {"total": 0, "completed": 0, "failed": 0}}
    server = ending(server_of(), status="failed", errors=errors, **nothing)
    backend = Priced(openai(server), Price(10.0, 100.0))
    result = run(batched, backend, questions(1), options=Options(max_tokens=5), **ALL_ERRORS)
    assert {"succeeded": 0, "failed": 0, "errored": 1} == result.counts()
    assert (0, 0.0) == (result.usage.total_tokens, result.usage.cost)


COUNTS_THAT_LAG = [None, {"total": 5, "completed": 1, "failed": 0}]


@pytest.mark.parametrize("counts", COUNTS_THAT_LAG, ids=["none", "old"])
def test_results_that_are_not_whole_are_read_again_if_the_counts_lag(run, tmp_path, counts):
    """F21: a completed batch has a line for each request, whatever its counts say."""
    server, reads = ending(server_of(), request_counts=counts), []

    def mangle(lines):
        reads.append(lines)
        return lines[:2] if len(reads) == 1 else lines

    server.mangle = mangle
    result = run(batched, openai(server), questions(5), journal=InlineJournal(tmp_path / "run.db"))
    assert (5, ()) == (result.counts()["succeeded"], result.maybe_billed_twice)
    assert ([5], {}, 2) == (sizes(server), paid_twice(server), len(reads))


def with_lines(server, change):
    """Change the lines of the first batch, as JSON."""

    def mangle(lines):
        if len(server.batches) > 1:
            return lines
        return [json.dumps({**(line := json.loads(one)), **change(line)}).encode() for one in lines]

    server.mangle = mangle
    return server


EMPTY_RESPONSES = [{}, {"status_code": 0, "request_id": "", "body": None}, {"status_code": None, "body": {}}, "none"]


@pytest.mark.parametrize("response", EMPTY_RESPONSES, ids=["empty", "zero", "null", "text"])
def test_an_error_beside_an_empty_response_counts(run, response):
    """F21: a request that expired is a timeout in the end, not an error of the server."""
    error = {"code": "batch_expired", "message": "This request could not be executed."}
    server = with_lines(server_of(), lambda _: {"response": response, "error": error})
    result = run(batched, openai(server), questions(3), engine=BatchEngine(max_tries=1), **ALL_ERRORS)
    assert ["Timeout"] * 3 == [type(one.error).__name__ for one in result.outcomes]


@pytest.mark.parametrize("error", [{"code": "400", "message": "the prompt is too long"}, "the prompt is too long"])
def test_the_reason_beside_a_response_without_a_body_is_told(run, error):
    """F21: as some servers write the lines of refused requests."""
    response = {"status_code": 400, "request_id": "req_1", "body": None}
    server = with_lines(server_of(), lambda _: {"response": response, "error": error})
    result = run(batched, openai(server), questions(1), **ALL_ERRORS)
    assert "BadRequest" == type(result.outcomes[0].error).__name__
    assert "the prompt is too long" in str(result.outcomes[0].error)


@pytest.mark.parametrize("status", ["none", 201])
def test_an_answer_with_an_unusual_status_is_an_answer(run, status):
    """F21: it was paid for, so it is neither an error nor sent again."""
    server = with_lines(server_of(), lambda line: {"response": {**line["response"], "status_code": status}})
    result = run(batched, openai(server), questions(3))
    assert (3, [3]) == (result.counts()["succeeded"], sizes(server))


def test_the_status_of_a_batch_may_be_in_capitals(run):
    """F21: as some servers write it. Otherwise the batch would never end."""
    server = ending(server_of(), status="COMPLETED")
    result = run(batched, openai(server), questions(3))
    assert (3, [3]) == (result.counts()["succeeded"], sizes(server))


ODD_REPORTS = [
    {"errors": ""},
    {"errors": []},
    {"metadata": "{}"},
    {"request_counts": []},
    {"request_counts": {"total": 3.0, "completed": "3", "failed": None}},
]


@pytest.mark.parametrize("report", ODD_REPORTS, ids=str)
def test_a_report_of_another_form_does_not_hide_the_answers(run, report):
    """F21: servers that speak OpenAI's API send these fields in other forms, and the batch has ended all the same."""
    server = ending(server_of(), **report)
    result = run(batched, openai(server), questions(3))
    assert (3, [3]) == (result.counts()["succeeded"], sizes(server))


@pytest.mark.parametrize("errors", ["the file is not valid", [{"message": "the file is not valid"}]], ids=type)
def test_the_reason_of_a_failed_batch_may_be_a_text_or_a_list(run, errors):
    """F21: it is told, as if it was in the form of OpenAI."""
    server = ending(server_of(), status="failed", errors=errors, output_file_id=None)
    result = run(batched, openai(server), questions(1), **ALL_ERRORS)
    assert ["BadRequest"] == [type(one.error).__name__ for one in result.outcomes]
    assert "the file is not valid" in str(result.outcomes[0].error)


def refusing(server, code, times, *, line=None, param=None):
    """Refuse the first batches for this reason."""
    create = server._openai_create

    def create_or_refuse(fields):
        answer = create(fields)
        if len(server.batches) <= times:
            batch = server.batches[-1]
            batch.status, batch.requests = "failed", []
            batch.errors = [{"code": code, "message": "Failed to process the batch.", "line": line, "param": param}]
            answer = {**answer, "status": "failed", "errors": {"object": "list", "data": batch.errors}}
        return answer

    server._openai_create = create_or_refuse
    return server


@pytest.mark.parametrize("code", ["server_error", "internal_error", "internal_server_error", "api_error"])
def test_a_batch_that_the_server_failed_to_process_is_sent_again(run, tmp_path, code):
    """F21: nothing was wrong with the requests, and nothing was billed."""
    server = refusing(server_of(), code, times=1)
    result = run(batched, openai(server), questions(3), journal=InlineJournal(tmp_path / "run.db"))
    assert (3, ()) == (result.counts()["succeeded"], result.maybe_billed_twice)
    assert [0, 3] == sizes(server)


def test_a_server_that_fails_to_process_every_batch_is_an_error(run):
    """F21: after `max_tries` batches."""
    server = refusing(server_of(), "server_error", times=9)
    result = run(batched, openai(server), questions(3), **ALL_ERRORS)
    assert ["ServerError"] * 3 == [type(one.error).__name__ for one in result.outcomes]
    assert [0, 0, 0] == sizes(server)


@pytest.mark.parametrize("cut", [1, 9], ids=["for a moment", "for ever"])
def test_lines_of_expired_requests_do_not_stand_for_missing_answers(run, tmp_path, cut):
    """F21: two of five expired, and of the three answers only one is in the file at first."""
    server, reads = server_of(), []

    def answer(request):
        is_late = len(server.batches) == 1 and request.prompt[-1] in "34"
        return Verdict("expired") if is_late else "yes"

    def mangle(lines):
        if len(server.batches) > 1 or b"batch_expired" in lines[0]:
            return lines
        reads.append(lines)
        return lines[:1] if len(reads) <= cut else lines

    server.answer, server.mangle = answer, mangle
    result = run(batched, openai(server), questions(5), journal=InlineJournal(tmp_path / "run.db"))
    assert 5 == result.counts()["succeeded"]
    # What is asked again although it was paid for is reported.
    assert len(paid_twice(server)) <= len(result.maybe_billed_twice)
    assert cut > 1 or (2, ()) == (len(server.batches[1].requests), result.maybe_billed_twice)


def test_lines_that_were_read_before_an_error_are_kept(run, tmp_path):
    """F21: the server fails between two files, and when both are read again, an answer is missing in the first."""
    server, reads, failed = server_of(), [], []

    def answer(request):
        return Verdict("expired") if len(server.batches) == 1 and request.prompt[-1] in "34" else "yes"

    def mangle(lines):
        if b"batch_expired" in lines[0]:
            return lines
        reads.append(lines)
        return lines[1:] if len(reads) == 2 else lines

    def intercept(method, path):
        if path.endswith("errors/content") and not failed:
            failed.append(path)
            return 503, {"error": {"message": "down"}}
        return None

    server.answer, server.mangle, server.intercept = answer, mangle, intercept
    result = run(batched, openai(server), questions(5), journal=InlineJournal(tmp_path / "run.db"))
    assert (5, ()) == (result.counts()["succeeded"], result.maybe_billed_twice)
    assert ([5, 2], {}) == (sizes(server), paid_twice(server))


def test_lines_that_an_earlier_process_has_read_count(run, tmp_path):
    """F21: of an expired batch, it had read one of three answers. The other two requests have no lines."""
    server, reads, scopes = server_of(), [], []

    def answer(request):
        return Verdict("expired") if len(server.batches) == 1 and request.prompt[-1] in "34" else "yes"

    def mangle(lines):
        if b"batch_expired" in lines[0]:
            return []
        reads.append(lines)
        if len(reads) == 2:
            scopes[0].cancel()
        return lines[:1] if len(reads) <= 2 else lines

    async def cut_off():
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            await batched(openai(server), questions(5), engine=BatchEngine(cancel_on_exit=False), journal=journal)

    server.answer, server.mangle = answer, mangle
    journal = InlineJournal(tmp_path / "run.db")
    run(cut_off)
    server.batches[0].ready -= 2 * HOUR
    result = run(batched, openai(server), questions(5), journal=journal)
    assert (5, ()) == (result.counts()["succeeded"], result.maybe_billed_twice)
    assert ([5, 2], {}) == (sizes(server), paid_twice(server))


def test_a_found_batch_whose_results_are_empty_at_first_is_ours(run, tmp_path):
    """F21: Anthropic keeps no names, and a file without lines shows nothing about whose batch it is."""
    server, reads = losing_creations(server_of()), []

    def mangle(lines):
        reads.append(lines)
        return [] if len(reads) == 1 else lines

    server.mangle = mangle
    result = run(batched, PROVIDERS["anthropic"](server), questions(3), journal=InlineJournal(tmp_path / "run.db"))
    assert (3, ()) == (result.counts()["succeeded"], result.maybe_billed_twice)
    assert ([3], {}) == (sizes(server), paid_twice(server))


@pytest.mark.parametrize(
    ("code", "param", "error"),
    [
        ("model_not_found", "body.model", "ModelNotFound"),
        ("model_not_found", None, "ModelNotFound"),
        ("url_not_found", "url", "BadRequest"),
    ],
)
def test_a_reason_that_all_requests_share_refuses_all_of_them(run, code, param, error):
    """F21: a server may name only the first line, and would do so again for each of the others."""
    server = refusing(server_of(), code, times=9, line=1, param=param)
    result = run(batched, openai(server), questions(5), **ALL_ERRORS)
    assert [error] * 5 == [type(one.error).__name__ for one in result.outcomes]
    assert [0] == sizes(server)
