"""The embedded model: it is packaged, its logits equal PyTorch's, and its accuracy is as documented."""

import json
import math
import random
import sys
import zipfile
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from subprocess import run as run_process
from urllib.parse import urlsplit

import anyio
import attrs
import pytest

from sampling import MultiTurnStrategy, RejectionSamplingStrategy
from sampling.backends.llama import LlamaBackend
from sampling.backends.llama._server import LlamaServer, LlamaSettings
from sampling.backends.llama.models import EMBEDDED_MODEL
from sampling.backends.llama.models.arithmetic import (
    Question,
    draw_question,
    final_number,
    held_out,
    share_of_right_steps,
)
from sampling.cli._demo_strategies import UNTRUNCATED, DemoAnswer

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = json.loads((ROOT / "tests" / "backends" / "embedded_model.json").read_text(encoding="utf-8"))

CLOSE = 0.025
"""How far a probability may be from PyTorch's: llama.cpp rounds what it multiplies with to 8 bits, and keeps 16 of keys
and values. The largest difference among these answers is 0.01; a wrong layout of the weights makes nonsense of all."""


@pytest.fixture(scope="module")
def server():
    with LlamaServer(LlamaSettings(slots=1, context_tokens=1_024)) as running:
        yield running


def post(server: LlamaServer, path: str, **body: object) -> dict:
    connection = HTTPConnection(urlsplit(server.address).netloc, timeout=10)
    with closing(connection):
        headers = {"Authorization": f"Bearer {server.api_key.reveal()}", "Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(body), headers)
        return json.load(connection.getresponse())


def test_it_is_small():
    """Two megabytes at the most: nobody minds it in a package."""
    assert EMBEDDED_MODEL.stat().st_size <= 2_000_000


def test_it_is_in_the_wheel(tmp_path):
    """The wheel contains the model."""
    build = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    done = run_process(  # noqa: S603 - this interpreter
        [sys.executable, "-c", build, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name in done.stdout
    with zipfile.ZipFile(wheel) as packed:
        assert packed.read("sampling/backends/llama/models/arithmetic.gguf") == EMBEDDED_MODEL.read_bytes()


@pytest.mark.parametrize("case", REFERENCE, ids=range(len(REFERENCE)))
def test_the_chat_template_makes_the_prompt_it_was_trained_on(server, case):
    """The chat template of llama.cpp renders exactly the text that the model was trained on."""
    messages = [
        {"role": "assistant" if number % 2 else "user", "content": said} for number, said in enumerate(case["talk"])
    ]
    assert case["prompt"] == post(server, "/apply-template", messages=messages)["prompt"]
    tokens = post(server, "/tokenize", content=case["prompt"], add_special=True)["tokens"]
    assert case["prompt_tokens"] == tokens


@pytest.mark.parametrize("case", REFERENCE, ids=range(len(REFERENCE)))
def test_llama_cpp_computes_what_pytorch_did(server, case):
    """The greedy answers are the same, token by token, and so are the probabilities on the way, but for rounding."""
    answer = post(
        server,
        "/completion",
        prompt=case["prompt_tokens"],
        n_predict=len(case["tokens"]),
        temperature=0,
        n_probs=10,
        return_tokens=True,
    )
    steps = answer["completion_probabilities"]
    assert case["tokens"] == [step["id"] for step in steps]
    for expected, step in zip(case["logprobs"], steps, strict=True):
        found = {str(token["id"]): math.exp(token["logprob"]) for token in step["top_logprobs"]}
        for token, logprob in expected.items():
            assert found.get(token, 0.0) == pytest.approx(math.exp(logprob), abs=CLOSE)


# What it can do.


@pytest.fixture(scope="module")
def answers():
    """Ask held-out questions: once, and until they are right, with what was wrong as the next turn."""

    async def ask_all(count: int) -> tuple[list[DemoAnswer], list[list[bool]]]:
        once, repaired = [], []
        async with LlamaBackend() as backend:
            for number, question in enumerate(held_out(count, seed=5)):
                options = attrs.evolve(UNTRUNCATED, seed=10 * number)
                result = await RejectionSamplingStrategy().sample(question.text, None, backend, options=options)
                once.append(DemoAnswer.of(result, question))
                repairing = MultiTurnStrategy(loop_budget=2)
                result = await repairing.sample(question.text, None, backend, [question.requirement], options=options)
                repaired.append([one.valid for one in result.slices])
        return once, repaired

    return anyio.run(ask_all, 120)


def test_one_sample_is_right_more_often_than_not_but_often_wrong(answers):
    """At temperature 1, on questions that it has never seen: between 35 % and 75 %."""
    once, _ = answers
    share = sum(answer.right for answer in once) / len(once)
    assert 0.35 <= share <= 0.75


def test_an_answer_is_short(answers):
    """Tens of tokens: hundreds of questions take seconds."""
    once, _ = answers
    assert max(answer.usage.output_tokens for answer in once) <= 64
    assert sum(answer.usage.output_tokens for answer in once) / len(once) <= 40


def test_told_what_was_wrong_it_does_better(answers):
    """A second try, with the reason in the conversation, is right at least as often as a first one."""
    once, repaired = answers
    second = [tries[1] for tries in repaired if len(tries) == 2]
    assert len(second) >= 20
    assert sum(second) / len(second) >= sum(answer.right for answer in once) / len(once)


# What it was taught.


@pytest.mark.parametrize(
    ("question", "worked"),
    [
        (Question(347, "+", 286), "7+6=13, 4+8+1=13, 3+2+1=6, so 633"),
        (Question(533, "-", 286), "13-6=7, 12-8=4, 4-2=2, so 247"),
        (Question(99, "+", 7), "9+7=16, 9+0+1=10, so 106"),
        (Question(100, "-", 99), "10-9=1, 9-9=0, 0-0=0, so 1"),
    ],
)
def test_an_answer_is_worked_out_column_by_column(question, worked):
    """Carried and borrowed ones are in the steps."""
    assert worked == question.worked()
    assert question.is_right(worked)
    assert share_of_right_steps(worked) == 1.0


def test_every_question_can_be_worked_out_and_read_back():
    """Training examples are correct in every step, and their question is the question asked."""
    draw = random.Random(0)
    for _ in range(2_000):
        question = draw_question(draw)
        worked = question.worked()
        assert question.answer == final_number(worked)
        assert share_of_right_steps(worked) == 1.0
        assert question == Question.parse(question.text)


def test_held_out_questions_are_different_ones_that_were_never_taught():
    """The same seed draws the same questions, and another seed draws others."""
    questions = held_out(200)
    assert len(set(questions)) == 200
    assert all(question.held_out for question in questions)
    assert questions == held_out(200)
    assert questions != held_out(200, seed=1)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("7+6=14, 4+8+1=13, 3+2+1=6, so 634", "7+6 is not 14. What is 347 + 286?"),
        ("7+6=13, 4+8=12, 3+2+1=6, so 623", "347 + 286 is not 623. What is 347 + 286?"),
        ("no idea", "there is no number in it. What is 347 + 286?"),
    ],
)
def test_a_wrong_answer_is_told_where_it_went_wrong(answer, reason):
    """Feedback names the first wrong step, else the result, and repeats the question."""
    validation = Question(347, "+", 286).check(answer)
    assert (validation.passed, validation.reason) == (False, reason)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (partial(Question, -1, "+", 2), ValueError, "left must be >= 0, got -1"),
        (partial(Question, 1, "/", 2), ValueError, r"operator must be one of \+, -, got '/'"),
        (partial(Question.parse, "2+2?"), ValueError, r"text must be a question such as 'What is 47 \+ 38\?'"),
        (partial(held_out, 0), ValueError, "count must be >= 1, got 0"),
    ],
)
def test_what_is_no_question_is_refused(make, error, message):
    """The error names the argument, shows the value and says what is allowed."""
    with pytest.raises(error, match=message):
        make()
