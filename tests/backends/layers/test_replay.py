"""Recording and replaying: the same to the byte, under concurrency too, and loud about whatever was not recorded."""

import base64
import contextlib
import itertools
import json
from urllib.parse import quote

import anyio
import attrs
import pytest

from sampling import (
    BackendError,
    Generation,
    Message,
    MultiTurnStrategy,
    Options,
    RateLimited,
    Reasoning,
    RejectionSamplingStrategy,
    Request,
    ToolCall,
    TransientError,
    Usage,
)
from sampling.backends.layers import Recorded, Replayed, Retrying
from sampling.backends.simulated import SimulatedBackend, lognormal
from sampling.errors import CassetteMiss, FileRefused, ServerError
from sampling.testing import After, ScriptedBackend, explore, run_virtual

ASK = Request((Message("user", "hello"),))


def account(result):
    """Return everything of a result but its ids. Times are comparable in virtual time."""
    return [
        (one.iteration, one.outcome, one.text, repr(one.error), one.usage, one.validations and one.complaints)
        for one in result.attempts
    ], (result.success, result.text, result.usage, result.stop_reason)


def times(result):
    return [(one.started_s, one.finished_s) for one in result.attempts]


async def sample(backend, requirements, prompt="hello", strategy=None):
    strategy = strategy or MultiTurnStrategy(loop_budget=4, concurrency_budget=5)
    return await strategy.sample(prompt, None, backend, requirements)


def simulated(seed=1, **settings):
    return SimulatedBackend(
        seed=seed, slots=4, output_tokens=lognormal(15, 0.7), pass_probability=0.15, failures=0.2, **settings
    )


@pytest.mark.parametrize("pace", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_call_is_replayed_to_the_byte(run, tmp_path, seed, pace):
    """A replay repeats every attempt, the winner and all usage, and with the recorded pace the times too."""
    backend = simulated(seed)
    recorded = Recorded(backend, tmp_path / "cassette")

    first = run(sample, recorded, backend.requirements)
    replayed = run(sample, Replayed(tmp_path / "cassette", pace=pace), backend.requirements)

    assert account(first) == account(replayed)
    if pace:
        assert times(first) == [pytest.approx(pair) for pair in times(replayed)]


def test_tool_calls_and_logprobs_are_replayed_too(run, tmp_path):
    """Tool calls, log-probabilities and refusals are replayed as they were recorded."""
    whole = Generation(
        "",
        Usage(3, 4, 0.5),
        "tool_calls",
        "m",
        reasoning="hm",
        tool_calls=(ToolCall("1", "look", '{"up": 1}'), ToolCall("2", "act", "")),
        refusal="no",
        logprobs=({"token": "a", "logprob": -0.5, "bytes": [97]},),
        turns=(Message("assistant", [Reasoning("hm", "signed"), ToolCall("0", "see", "{}")]),),
        raw={"id": "r-1"},
    )
    recorded = Recorded(ScriptedBackend([whole]), tmp_path / "cassette")

    first = run(recorded.generate, ASK)

    assert whole == first == run(Replayed(tmp_path / "cassette").generate, ASK)


def test_the_order_of_tasks_does_not_change_a_replay(tmp_path):
    """Whatever order the scheduler picks, the same one wins: requests end in the order in which they ended."""
    path = tmp_path / "cassette"
    backend = SimulatedBackend(seed=3, slots=8, output_tokens=lognormal(30, 0.8), pass_probability=0.3)
    strategy = RejectionSamplingStrategy(loop_budget=3, concurrency_budget=8)
    first = account(run_virtual(sample, Recorded(backend, path), backend.requirements, "hello", strategy))

    async def scenario(world):
        replayed = await sample(Replayed(path), backend.requirements, "hello", strategy)
        assert first == account(replayed)

    explore(scenario, seeds=range(40))


@pytest.mark.parametrize("latency_s", [0.0, 1.0])
@pytest.mark.parametrize("winners", [{2}, {2, 5}, {0, 1, 2, 3, 4, 5, 6, 7}])
def test_answers_of_the_same_instant_are_replayed_as_they_came(tmp_path, latency_s, winners):
    """Eight at once: what was complete when the winner came stays complete, in any order of tasks, on both loops."""

    def script(request):
        return After(latency_s, f"{'yes' if request.subsample in winners else 'no'} {request.subsample}")

    strategy = RejectionSamplingStrategy(loop_budget=2, concurrency_budget=8)
    requirements = [lambda text: text.startswith("yes")]
    cases = itertools.product(("asyncio", "trio"), range(5))
    for number, (loop, order) in enumerate(cases):
        path = tmp_path / str(number)
        recorded = Recorded(ScriptedBackend(script), path)
        first = account(run_virtual(sample, recorded, requirements, "hello", strategy, loop=loop, seed=order))
        for other_loop, other_order in itertools.product(("asyncio", "trio"), range(10, 13)):
            replayed = Replayed(path)
            again = run_virtual(sample, replayed, requirements, "hello", strategy, loop=other_loop, seed=other_order)
            assert first[1] == account(again)[1]
            assert [one for one in first[0] if one[1] != "cancelled"] == [
                one for one in account(again)[0] if one[1] != "cancelled"
            ]


def test_identical_calls_at_once_are_not_mixed_up(run, tmp_path):
    """Each replays one recorded call as a whole, not answers of one and of another."""
    backend = SimulatedBackend(seed=4, slots=50, output_tokens=lognormal(20, 0.5))

    async def three(backend):
        results = []

        async def one():
            results.append(account(await sample(backend, [lambda text: "a" in text[20:30]])))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(one)
        return sorted(map(repr, results))

    first = run(three, Recorded(backend, tmp_path / "cassette"))
    assert first == run(three, Replayed(tmp_path / "cassette"))


def test_one_call_of_many_can_be_replayed_alone(run, tmp_path):
    """A cassette for a whole test suite serves a single test of it."""
    backend = simulated()
    recorded = Recorded(backend, tmp_path / "cassette")

    async def all_of_them():
        return [await sample(recorded, backend.requirements, f"question {number}") for number in range(4)]

    last = run(all_of_them)[-1]
    alone = run(sample, Replayed(tmp_path / "cassette"), backend.requirements, "question 3")
    assert account(last) == account(alone)


def test_errors_are_replayed_with_their_own_type(run, tmp_path):
    """Errors are replayed with their arguments, and one of an unknown type is a plain BackendError."""
    path = tmp_path / "cassette"
    overloaded = ServerError("overloaded", retry_after_s=3)
    overloaded.status = 503
    errors = [RateLimited("slow down", retry_after_s=2.5), overloaded, LookupError("secret"), "done"]

    async def collect(backend):
        caught = []
        for _ in range(4):
            try:
                caught.append((await backend.generate(ASK)).text)
            except Exception as error:
                caught.append((type(error), str(error), getattr(error, "retry_after_s", None)))
        return caught

    recorded = run(collect, Recorded(ScriptedBackend(errors), path))
    replayed = run(collect, Replayed(path))
    assert replayed[:2] + replayed[3:] == recorded[:2] + recorded[3:]
    assert (BackendError, "the recorded backend raised LookupError", None) == replayed[2]
    assert 503 == Replayed(path)._outside_calls.items[1].entry.error.status


def test_retries_around_it_see_what_the_recorded_ones_saw(run, tmp_path):
    """A request that is repeated after a failure is another entry, with the same waits."""
    path = tmp_path / "cassette"
    script = [RateLimited(retry_after_s=2), TransientError("no"), "done"]

    async def timed(backend):
        start = anyio.current_time()
        result = await RejectionSamplingStrategy().sample("hello", None, Retrying(backend, seed=1))
        return result.text, result.best.requests, anyio.current_time() - start

    assert run(timed, Recorded(ScriptedBackend(script), path)) == run(timed, Replayed(path))


def test_a_stream_is_replayed_in_its_pieces(run, tmp_path):
    """An answer that was recorded whole is streamed in one piece."""
    path = tmp_path / "cassette"
    recorded = Recorded(SimulatedBackend(output_tokens=4), path)

    async def record():
        pieces = []
        await recorded.stream(ASK, pieces.append)
        await recorded.generate(ASK)
        return pieces

    async def replay():
        replayed, pieces, whole = Replayed(path), [], []
        await replayed.stream(ASK, pieces.append)
        await replayed.stream(ASK, whole.append)
        return pieces, whole

    pieces = run(record)
    again, whole = run(replay)
    assert 4 == len(pieces)
    assert pieces == again
    assert 1 == len(whole)


def test_what_was_never_asked_is_a_miss_that_shows_the_nearest_and_what_differs(run, tmp_path):
    """Loud, typed, and fatal: it ends the call at once."""
    path = tmp_path / "cassette"
    options = Options(temperature=0.7, extra={"top_p": 0.5, "user": "me"})
    long_text = "the same beginning, for a while, and then " * 3

    async def record():
        recorded = Recorded(ScriptedBackend(["one", "two"]), path)
        await recorded.generate(Request((Message("system", "be brief"), Message("user", long_text + "x")), options))
        await recorded.generate(ASK)

    run(record)
    other = Options(temperature=0, extra={"top_p": 0.5, "user": "you"})
    with pytest.raises(CassetteMiss) as miss:
        run(Replayed(path).generate, Request((Message("system", "be brief"), Message("user", long_text + "y")), other))
    message = str(miss.value)
    assert 'messages[1].content (recorded …"r a while, and then x", asked …"r a while, and then y")' in message
    assert "options.temperature (recorded 0.7, asked 0)" in message
    assert "options.extra.user (recorded " in message
    assert '"me"' not in message
    assert "messages[0]" not in message

    with pytest.raises(CassetteMiss, match=r"differs in subsample .recorded 0, asked 7"):
        run(Replayed(path).generate, attrs.evolve(ASK, subsample=7))
    with pytest.raises(CassetteMiss, match=r"differs in options.seed .recorded nothing, asked 3"):
        run(Replayed(path).generate, attrs.evolve(ASK, options=Options(seed=3)))


def test_what_was_asked_less_often_is_a_miss_too(run, tmp_path):
    """An answer is played once for each time that it was given."""
    path = tmp_path / "cassette"

    async def ask_twice(backend):
        for _ in range(2):
            await backend.generate(ASK)

    run(Recorded(ScriptedBackend(["one"]), path).generate, ASK)
    with pytest.raises(CassetteMiss, match="has this request, but fewer times"):
        run(ask_twice, Replayed(path))


def test_an_empty_cassette_says_so(run, tmp_path):
    """The error says that the cassette has no requests."""
    Recorded(SimulatedBackend(), tmp_path / "cassette")

    with pytest.raises(CassetteMiss, match="has no requests in it"):
        run(Replayed(tmp_path / "cassette").generate, ASK)


def test_a_run_that_goes_another_way_fails_instead_of_hanging(run, tmp_path):
    """A replayed request waits at most `patience_s` for its turn or its cancellation."""
    path = tmp_path / "cassette"
    slow_and_fast = ScriptedBackend(lambda request: After(1.0 + request.subsample, "done"))

    async def race():
        await RejectionSamplingStrategy(concurrency_budget=2).sample("hello", None, Recorded(slow_and_fast, path))

    async def only(subsample):
        replayed = Replayed(path, patience_s=5)
        with pytest.raises(CassetteMiss) as miss:
            await replayed.generate(attrs.evolve(ASK, sampling_id="other", subsample=subsample))
        return str(miss.value)

    run(race)
    assert "other requests were sent or answered before" in run(only, 0)
    assert "this request was cancelled, but not in this run" in run(only, 1)


SECRET = "sk-canary-0123456789abcdef"  # noqa: S105 - it is a canary


def forms_of(secret):
    return [secret, quote(secret, safe=""), base64.b64encode(secret.encode()).decode(), repr(secret), secret[:8]]


def test_no_key_and_no_header_is_ever_written(run, tmp_path):
    """Row 72, I17: not from options that are passed on, and not from what an error says."""
    path = tmp_path / "cassette"
    options = Options(extra={"api_key": SECRET, "extra_headers": {"Authorization": f"Bearer {SECRET}"}, "top_k": 5})
    recorded = Recorded(ScriptedBackend([TransientError(f"refused: Bearer {SECRET}"), LookupError(SECRET)]), path)

    async def fail():
        for _ in range(2):
            with pytest.raises((TransientError, LookupError)):
                await recorded.generate(Request(ASK.messages, options))

    run(fail)
    written = path.read_text()
    assert [] == [form for form in forms_of(SECRET) if form in written]
    assert '"top_k":5' in written
    assert "extra_headers" in written
    assert SECRET not in repr(recorded)


def test_the_file_is_json_lines_with_a_version(tmp_path):
    """Plain enough for any tool to read, and in virtual time the same bytes for the same seed."""

    async def record(name):
        backend = simulated()
        await sample(Recorded(backend, tmp_path / name), backend.requirements)
        return (tmp_path / name).read_bytes()

    first, second = [run_virtual(record, name, loop="trio", seed=1) for name in ("one", "two")]
    header, *lines = [json.loads(line) for line in first.splitlines()]
    assert {"format": "sampling cassette", "version": 1} == header
    assert {0} == {line["call"] for line in lines}
    assert first == second


def test_a_file_that_is_there_is_not_overwritten(run, tmp_path):
    """`append=True` adds to the file, and keeps its entries."""
    path = tmp_path / "cassette"

    async def record(text, **how):
        await sample(Recorded(ScriptedBackend(lambda request: text), path, **how), [], text)

    run(record, "one")
    with pytest.raises(FileExistsError):
        Recorded(SimulatedBackend(), path)
    run(record, "two", append=True)
    for text in ("two", "one"):
        assert text == run(sample, Replayed(path), [], text).text


def test_a_crash_in_the_middle_of_a_line_costs_that_line_only(run, tmp_path):
    """An incomplete last line is no entry, and the next recording removes it."""
    path = tmp_path / "cassette"
    run(Recorded(ScriptedBackend(["one"]), path).generate, ASK)
    whole = path.read_bytes()
    for cut in range(1, 40):
        path.write_bytes(whole + whole.splitlines(keepends=True)[1][:-cut])
        assert "one" == run(Replayed(path).generate, ASK).text
    run(Recorded(ScriptedBackend(["two"]), path, append=True).generate, ASK)
    assert whole == path.read_bytes()[: len(whole)]
    assert 3 == len(path.read_bytes().splitlines())


class FullDisk:
    """A file on a disk that has room for ten bytes more."""

    def __init__(self, file):
        self.file, self.writes = file, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, data):
        self.writes += 1
        if self.writes > 1:
            raise OSError(28, "No space left on device")
        return self.file.write(data[:10])

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_a_full_disk_leaves_no_half_of_a_line(run, tmp_path, monkeypatch):
    """Row 61: the error comes through, and the file is as it was."""
    path = tmp_path / "cassette"
    recorded = Recorded(ScriptedBackend(["one", "two"]), path)
    run(recorded.generate, ASK)
    before = path.read_bytes()
    really_open = type(path).open

    with monkeypatch.context() as patch:
        patch.setattr(type(path), "open", lambda self, *how, **options: FullDisk(really_open(self, *how, **options)))
        with pytest.raises(OSError, match="No space left"):
            run(recorded.generate, ASK)
    assert before == path.read_bytes()


GOOD = {
    "subsample": 0,
    "attempt": 0,
    "asked_after": 0,
    "request": {"messages": [], "options": {}},
    "asked_s": 0,
    "ended_s": 1,
    "ending": "answer",
    "generation": {"text": "a"},
}
HEADER = '{"format":"sampling cassette","version":1}\n'


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\n",
        "not a cassette",
        "not a cassette\n",
        '{"format":"sampling cassette","version":2}\n',
        b"\xff\xfe\n",
        HEADER + "[]\n",
        HEADER + "{}\n",
        HEADER + "[" * 100_000 + "\n",
        HEADER + json.dumps({**GOOD, "subsample": -1}) + "\n",
        HEADER + json.dumps({**GOOD, "subsample": True}) + "\n",
        HEADER + json.dumps({**GOOD, "call": "0"}) + "\n",
        HEADER + json.dumps({**GOOD, "ended_s": "now"}) + "\n",
        HEADER + json.dumps({**GOOD, "ended_s": float("nan")}) + "\n",
        HEADER + json.dumps({**GOOD, "request": 3}) + "\n",
        HEADER + json.dumps({**GOOD, "request": {"messages": 3, "options": {}}}) + "\n",
        HEADER + json.dumps({**GOOD, "generation": {"text": "a", "__reduce__": "os.system"}}) + "\n",
        HEADER + json.dumps({**GOOD, "generation": {"text": "a", "usage": {"output_tokens": -5}}}) + "\n",
        HEADER + json.dumps({**GOOD, "ending": "surprise"}) + "\n",
        HEADER + json.dumps({**GOOD, "extra": 1}) + "\n",
        HEADER + json.dumps({**GOOD, "pieces": [1]}) + "\n",
        HEADER + json.dumps({**GOOD, "used": {"tokens": 1}}) + "\n",
        HEADER + json.dumps({**GOOD, "ending": "error", "error": {"type": "SystemExit", "message": ""}}) + "\n",
        HEADER + json.dumps({**GOOD, "ending": "error", "error": {"type": "os.system", "message": "x"}}) + "\n",
        HEADER + json.dumps({**GOOD, "ending": "error", "error": {"type": "Timeout"}}) + "\n",
        HEADER + json.dumps({**GOOD, "ending": "error", "error": {"type": "Timeout", "message": 3}}) + "\n",
        HEADER
        + json.dumps({**GOOD, "ending": "error", "error": {"type": "Timeout", "message": "x", "args": []}})
        + "\n",
        HEADER
        + json.dumps({**GOOD, "ending": "error", "error": {"type": "Timeout", "message": "x", "status": "no"}})
        + "\n",
        HEADER + json.dumps({**GOOD, "ending": "error", "error": ["Timeout"]}) + "\n",
        HEADER + json.dumps(GOOD)[:-1] + ',"attempt":0}\n',
    ],
)
def test_a_crafted_or_damaged_file_is_refused(tmp_path, content):
    """Rows 62, 76 and 78: with the line, with a type, and without running anything."""
    path = tmp_path / "cassette"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())

    with pytest.raises(FileRefused, match="cassette"):
        Replayed(path)


def test_any_damaged_byte_gives_a_typed_error_or_a_cassette(tmp_path, run):
    """Whatever is flipped, reading is total: FileRefused, or a file that still is one."""
    path = tmp_path / "cassette"
    backend = simulated()
    run(sample, Recorded(backend, path), backend.requirements, "hi", RejectionSamplingStrategy())
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        for flipped in (0, 34, 91, 255):
            path.write_bytes(whole[:place] + bytes([flipped]) + whole[place + 1 :])
            with contextlib.suppress(FileRefused):
                Replayed(path)


def test_nested_calls_are_recorded_and_replayed_each_by_itself(run, tmp_path):
    """A check that samples with the same backend makes a call of its own."""
    path = tmp_path / "cassette"

    def script(request):
        return After(0.1 * (1 + request.subsample), f"{request.messages[-1].content} {request.subsample}")

    async def outer(backend):
        async def check(text):
            inner = await RejectionSamplingStrategy(concurrency_budget=2).sample(f"check {text}", None, backend)
            return inner.text.endswith("0") and text.endswith("1")

        strategy = RejectionSamplingStrategy(concurrency_budget=3)
        return account(await strategy.sample("hello", None, backend, [check]))

    assert run(outer, Recorded(ScriptedBackend(script), path)) == run(outer, Replayed(path))


def test_bad_settings_are_refused_by_name(tmp_path):
    """The error names the argument, shows the value and says what is allowed."""
    Recorded(SimulatedBackend(), tmp_path / "cassette")
    with pytest.raises(ValueError, match="pace must be >= 0, got -1"):
        Replayed(tmp_path / "cassette", pace=-1)
    with pytest.raises(ValueError, match="patience_s must be > 0, got 0"):
        Replayed(tmp_path / "cassette", patience_s=0)
    with pytest.raises(TypeError, match="append must be True or False"):
        Recorded(SimulatedBackend(), tmp_path / "cassette", append="yes")
    with pytest.raises(FileNotFoundError):
        Replayed(tmp_path / "none")


def test_the_repr_shows_the_file(tmp_path):
    """The repr has the file and the recorded backend."""
    path = str(tmp_path / "cassette")

    assert f"Recorded(sample, path={path!r})" == repr(Recorded(sample, path))
    assert f"Replayed({path!r})" == repr(Replayed(path))


def test_usage_and_all_else_of_a_generation_survive(run, tmp_path):
    """A replayed generation has every field of the recorded one."""
    whole = Generation("text\ud800\n\0", Usage(1, 2, 0.5), "length", "model", reasoning="because")
    run(Recorded(ScriptedBackend([whole]), tmp_path / "cassette").generate, ASK)

    assert whole == run(Replayed(tmp_path / "cassette").generate, ASK)
