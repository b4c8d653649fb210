"""The fastest user of locust, without think time. Locust runs this in its own environment."""

from __future__ import annotations

import json

from locust import FastHttpUser, constant, task  # type: ignore[import-not-found]

BODY = json.dumps(
    {
        "model": "canned",
        "messages": [{"role": "user", "content": "Write something."}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
)


class Asker(FastHttpUser):
    """One user."""

    wait_time = constant(0)

    @task
    def ask(self) -> None:
        """Post a request, and read the whole response."""
        with self.client.post(
            "/v1/chat/completions", data=BODY, headers={"content-type": "application/json"}, catch_response=True
        ) as answer:
            if b"[DONE]" not in answer.content:
                answer.failure("not whole")
