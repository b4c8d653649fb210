"""Show the lanes of a call in a browser: `uvicorn --app-dir examples/web_service app:app`."""

import json
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
backend = OpenAIBackend()  # reads OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL


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
                starts_over = event.piece == event.text
                lane = {"lane": event.subsample, "outcome": "running", "piece": event.piece, "new": starts_over}
            elif isinstance(event, IterationFinished):
                lane = {"lane": event.subsample, "outcome": event.slice.outcome}
            else:
                continue
            await to_browser.send(ServerSentEvent(json.dumps(lane), event="lane"))
        best = events.result.best  # None if no attempt came to an answer
        end = {"success": events.result.success, "lane": best and best.subsample, "text": events.result.text}
        await to_browser.send(ServerSentEvent(json.dumps(end), event="end"))


app.mount("/", StaticFiles(directory=Path(__file__).parent / "static", html=True))
