"""Show the lanes of a call in a browser: `uvicorn --app-dir examples/web_service app:app`."""

import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles
from sse_starlette import EventSourceResponse, ServerSentEvent

from sampling import IterationFinished, OpenAIBackend, RejectionSamplingStrategy, TextGrown

strategy = RejectionSamplingStrategy(concurrency_budget=4)
backend = OpenAIBackend(os.environ.get("OPENAI_BASE_URL"), model=os.environ.get("MODEL", "gpt-5-mini"))


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncGenerator[None, None]:
    async with backend:
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/ask")
async def ask(question: str) -> EventSourceResponse:  # noqa: ASYNC124 - FastAPI runs others in a thread
    to_browser, events = anyio.create_memory_object_stream[ServerSentEvent](0)
    return EventSourceResponse(events, data_sender_callable=partial(run, question, to_browser))


async def run(question: str, to_browser: MemoryObjectSendStream[ServerSentEvent]) -> None:
    async with to_browser, strategy.stream(question, None, backend) as events:
        async for event in events:
            if isinstance(event, TextGrown):
                lane = {"lane": event.subsample, "outcome": "running", "text": event.text}
            elif isinstance(event, IterationFinished):
                lane = {"lane": event.subsample, "outcome": event.slice.outcome, "text": event.slice.text}
            else:
                continue
            await to_browser.send(ServerSentEvent(json.dumps(lane), event="lane"))
        await to_browser.send(ServerSentEvent(json.dumps(events.result.value), event="end"))


app.mount("/", StaticFiles(directory=Path(__file__).parent / "static", html=True))
