"""The loopback server speaks the real APIs, and we send what the official clients send."""

import json

import anthropic
import openai
import pytest

from sampling import Options
from sampling.fanout import BatchEngine
from sampling.testing.batch_servers import BatchServer, Verdict
from tests.fanout.batch.batch_kit import batched

FAST = {"linger_s": 0.01, "poll_interval_s": 0.02, "max_poll_interval_s": 0.05}
VERDICTS = {
    "expires": Verdict("expired"),
    "fails": Verdict(status=400, error={"type": "invalid_request_error", "message": "no"}),
}


def answer(request):
    return VERDICTS.get(request.prompt, f"answer to {request.prompt}")


class Recorder(BatchServer):
    """Keeps what clients send."""

    def __init__(self):
        super().__init__(answer)
        self.sent = []

    def handle(self, method, target, headers, body):
        self.sent.append((method, target, {name.lower(): value for name, value in headers.items()}, body))
        return super().handle(method, target, headers, body)

    def posted(self, ending):
        return [
            (headers, body) for method, path, headers, body in self.sent if method == "POST" and path.endswith(ending)
        ]


@pytest.fixture
def server():
    with Recorder() as server:
        yield server


def chat_body(prompt):
    return {"model": "model", "messages": [{"role": "user", "content": prompt}], "max_tokens": 7}


def message_body(prompt):
    return {"model": "model", "max_tokens": 7, "messages": [{"role": "user", "content": prompt}]}


class TestOpenAI:
    @pytest.fixture
    def client(self, server):
        with openai.OpenAI(base_url=server.url, api_key="key", max_retries=0) as client:
            yield client

    def upload(self, client, *prompts):
        lines = [
            {"custom_id": prompt, "method": "POST", "url": "/v1/chat/completions", "body": chat_body(prompt)}
            for prompt in prompts
        ]
        content = "\n".join(map(json.dumps, lines)).encode()
        return client.files.create(file=("requests.jsonl", content), purpose="batch")

    def create(self, client, *prompts):
        file = self.upload(client, *prompts)
        return client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"a": "b"}
        )

    def test_the_official_client_runs_a_batch(self, server, client):
        """F21: upload, create, retrieve, and read the output and error files."""
        batch = client.batches.retrieve(self.create(client, "good", "fails", "expires").id)
        assert "expired" == batch.status
        assert {"a": "b"} == batch.metadata
        counts = batch.request_counts
        assert (3, 1, 1) == (counts.total, counts.completed, counts.failed)
        (line,) = client.files.content(batch.output_file_id).text.splitlines()
        completion = openai.types.chat.ChatCompletion.model_validate(json.loads(line)["response"]["body"])
        assert "answer to good" == completion.choices[0].message.content
        errors = {
            one["custom_id"]: one for one in map(json.loads, client.files.content(batch.error_file_id).iter_lines())
        }
        assert 400 == errors["fails"]["response"]["status_code"]
        assert "batch_expired" == errors["expires"]["error"]["code"]

    def test_the_official_client_lists_and_cancels(self, server, client):
        """F21: page by page, the newest first."""
        server.latency_s = 1000
        ids = [self.create(client, str(number)).id for number in range(5)]
        assert ids[::-1] == [batch.id for batch in client.batches.list(limit=2)]
        assert "cancelled" == client.batches.cancel(ids[0]).status

    def test_what_the_official_client_is_refused(self, server, client):
        """F21: a file that is not valid fails the batch, and a missing key or batch is an error."""
        file = client.files.create(file=("requests.jsonl", b"{}\nnot json"), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        assert "failed" == batch.status
        assert [1, 2] == [error.line for error in batch.errors.data]
        with pytest.raises(openai.NotFoundError):
            client.batches.retrieve("batch_99")

    async def test_we_send_what_the_official_client_sends(self, server, client, anyio_backend):
        """F21: the same form, the same lines and the same creation."""
        from sampling import OpenAIBackend

        self.create(client, "good")
        async with OpenAIBackend(server.url, "key", "model") as backend:
            result = await batched(backend, ["good"], (), engine=BatchEngine(**FAST), options=Options(max_tokens=7))
        assert "answer to good" == result.outcomes[0].result.value
        theirs, ours = server.files.values()
        their_line, our_line = json.loads(theirs), json.loads(ours)
        assert their_line | {"custom_id": ""} == our_line | {"custom_id": ""}
        their_create, our_create = [json.loads(body) for _, body in server.posted("/batches")]
        same = {"metadata": {}, "input_file_id": ""}
        assert their_create | same == our_create | same
        for headers, _ in server.posted("/files"):
            assert headers["content-type"].startswith("multipart/form-data; boundary=")
            assert "Bearer key" == headers["authorization"]


class TestAnthropic:
    @pytest.fixture
    def client(self, server):
        url = server.url.removesuffix("/v1")
        with anthropic.Anthropic(base_url=url, api_key="key", max_retries=0) as client:
            yield client

    def create(self, client, *prompts):
        requests = [{"custom_id": prompt, "params": message_body(prompt)} for prompt in prompts]
        return client.messages.batches.create(requests=requests)

    def test_the_official_client_runs_a_batch(self, server, client):
        """F21: create, retrieve, and stream the results."""
        batch = client.messages.batches.retrieve(self.create(client, "good", "fails", "expires").id)
        assert "ended" == batch.processing_status
        counts = batch.request_counts
        assert (1, 1, 1, 0) == (counts.succeeded, counts.errored, counts.expired, counts.processing)
        results = {one.custom_id: one.result for one in client.messages.batches.results(batch.id)}
        assert "answer to good" == results["good"].message.content[0].text
        assert "invalid_request_error" == results["fails"].error.error.type
        assert "expired" == results["expires"].type

    def test_the_official_client_lists_and_cancels(self, server, client):
        """F21: page by page, the newest first."""
        server.latency_s = 1000
        ids = [self.create(client, str(number)).id for number in range(5)]
        assert ids[::-1] == [batch.id for batch in client.messages.batches.list(limit=2)]
        assert "ended" == client.messages.batches.cancel(ids[0]).processing_status
        assert "in_progress" == client.messages.batches.retrieve(ids[1]).processing_status

    def test_what_the_official_client_is_refused(self, server, client):
        """F21: ids that the API does not accept, and batches that do not exist."""
        with pytest.raises(anthropic.BadRequestError):
            self.create(client, "a b")
        with pytest.raises(anthropic.BadRequestError):
            self.create(client, "a", "a")
        with pytest.raises(anthropic.NotFoundError):
            client.messages.batches.retrieve("msgbatch_99")

    async def test_we_send_what_the_official_client_sends(self, server, client, anyio_backend):
        """F21: the same requests, with the same headers."""
        from sampling.backends.anthropic import AnthropicBackend

        self.create(client, "good")
        async with AnthropicBackend("model", "key", base_url=server.url) as backend:
            result = await batched(backend, ["good"], (), engine=BatchEngine(**FAST), options=Options(max_tokens=7))
        assert "answer to good" == result.outcomes[0].result.value
        (their_headers, theirs), (our_headers, ours) = server.posted("/batches")
        (their_request,), (our_request,) = json.loads(theirs)["requests"], json.loads(ours)["requests"]
        assert their_request | {"custom_id": ""} == our_request | {"custom_id": ""}
        assert their_headers["authorization"] == f"Bearer {our_headers['x-api-key']}"
        assert their_headers["content-type"] == our_headers["content-type"]
        assert {"anthropic-version"} <= their_headers.keys() & our_headers.keys()
