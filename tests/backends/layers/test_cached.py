"""Remembering answers: each sample by itself, whole ones only, and nothing that a crafted file could do."""

import sqlite3
from functools import partial

import anyio
import anyio.lowlevel
import attrs
import pytest

from sampling import Budget, Generation, Message, Options, RejectionSamplingStrategy, Request, TransientError, Usage
from sampling.backends.adapters import from_litellm
from sampling.backends.layers import Cached, FileStore, Limited, MemoryStore, Retrying
from sampling.backends.layers._identity import identity_of
from sampling.backends.simulated import SimulatedBackend
from sampling.errors import FileRefused
from sampling.testing import After, ScriptedBackend, cancel_at_every_step

ASK = Request((Message("user", "hello"),))


@pytest.fixture(params=["memory", "file"])
def store(request, tmp_path):
    """Each kind of store."""
    if request.param == "memory":
        yield MemoryStore()
    else:
        file_store = FileStore(tmp_path / "answers.db")
        yield file_store
        file_store.close()


def texts(result):
    return [attempt.text for attempt in result.attempts]


def test_a_hundred_samples_are_a_hundred_answers_and_the_same_ones_again(run, store):
    """They are never collapsed into one, and a call that is repeated asks for none of them."""
    backend = SimulatedBackend(slots=100, output_tokens=3)
    cached = Cached(backend, store=store)

    async def twice():
        strategy = RejectionSamplingStrategy(loop_budget=5, concurrency_budget=20)
        return [await strategy.sample("hello", None, cached, [lambda text: False]) for _ in range(2)]

    first, second = run(twice)
    assert 100 == len(set(texts(first))) == backend.statistics.served
    assert texts(first) == texts(second)
    assert 100 == len(first.slices)
    assert (100, 100) == (cached.hits, cached.misses)


def test_what_was_there_already_has_used_nothing(run, store):
    """A cached answer adds nothing to the usage of the result or of the budget."""
    cached = Cached(SimulatedBackend(output_tokens=10), store=store)

    async def twice():
        await RejectionSamplingStrategy().sample("hello", None, cached)
        budget = Budget(tokens=1_000)
        return (await RejectionSamplingStrategy().sample("hello", None, cached, budget=budget)), budget

    result, budget = run(twice)
    assert Usage() == result.usage == budget.spent
    assert 0 == budget.tokens_charged


@pytest.mark.parametrize(
    "changes",
    [
        {"options": Options(temperature=0)},
        {"options": Options(temperature=0.7)},
        {"options": Options(seed=0)},
        {"options": Options(model="other")},
        {"options": Options(stop=["x"])},
        {"options": Options(schema={"type": "object"})},
        {"options": Options(extra={"top_p": 0.5})},
        {"messages": (Message("system", "hello"),)},
        {"messages": (Message("user", "hello"), Message("user", "hello"))},
        {"subsample": 1},
        {"attempt": 1},
    ],
)
def test_whatever_makes_a_difference_is_in_the_key(run, changes):
    """A different temperature, subsample, attempt, model or message is a different entry."""
    cached = Cached(ScriptedBackend(["one", "other"]))

    async def two():
        return [(await cached.generate(request)).text for request in (ASK, attrs.evolve(ASK, **changes))]

    assert ["one", "other"] == run(two)


def answering(model):
    """A function that answers with its model."""

    async def backend(request):
        await anyio.lowlevel.checkpoint()
        return Generation(model)

    return backend


async def with_model(model, request):
    """A function that is given its model."""
    await anyio.lowlevel.checkpoint()
    return Generation(model)


class WithModel:
    """A backend with a model."""

    def __init__(self, model):
        self.model = model

    async def generate(self, request):
        """Answer with the model."""
        await anyio.lowlevel.checkpoint()
        return Generation(self.model)


class WithFingerprint(WithModel):
    """A backend that describes itself."""

    def __init__(self, model):
        self.name = model

    @property
    def model(self):
        """Return the name of the model, which its answers and its fingerprint share."""
        return self.name

    def fingerprint(self):
        """Return its model."""
        return self.name


@pytest.mark.parametrize(
    "make",
    [
        answering,
        WithModel,
        WithFingerprint,
        lambda model: partial(with_model, model),
        lambda model: WithModel(model).generate,
        lambda model: Retrying(WithModel(model)),
        lambda model: Limited(Retrying(answering(model)), max_in_flight=1),
    ],
)
def test_another_model_gets_no_old_answers(run, store, make):
    """The model of the backend is in the key, however the backend is made, and the same model finds its answers."""

    async def texts_of(*models):
        return [(await Cached(make(model), store=store).generate(ASK)).text for model in models]

    assert ["old", "new", "old"] == run(texts_of, "old", "new", "old")
    cached = Cached(make("old"), store=store)
    run(cached.generate, ASK)
    assert (1, 0) == (cached.hits, cached.misses)


def test_clients_of_other_libraries_are_told_apart_by_their_model():
    """Another key of the same model makes no difference, and is in no fingerprint."""

    async def acompletion(**_): ...

    one, other, same = (
        identity_of(from_litellm(acompletion, model=model, api_key=key))
        for model, key in (("m", "secret-1"), ("n", "secret-1"), ("m", "secret-2"))
    )
    assert one == same != other
    assert "secret" not in str(one)


def test_a_model_that_changes_later_gets_no_old_answers(run, store):
    """The model is read for every request."""
    backend = WithModel("old")
    cached = Cached(backend, store=store)
    assert "old" == run(cached.generate, ASK).text
    backend.model = "new"
    assert "new" == run(cached.generate, ASK).text


def test_retries_and_limits_change_no_key(run, store):
    """A layer is added without asking everything again."""
    run(Cached(WithModel("m"), store=store).generate, ASK)
    cached = Cached(Retrying(Limited(WithModel("m"), max_in_flight=3)), store=store)
    run(cached.generate, ASK)
    assert 1 == cached.hits


def test_what_makes_no_difference_is_not(run):
    """Ids of calls are random, 0 and 0.0 are the same temperature, and the order of options says nothing."""
    cached = Cached(ScriptedBackend(["one"]))
    same = [
        Request(ASK.messages, Options(temperature=0, extra={"a": 1, "b": 2}), "call-1", 1, "call-1-1"),
        Request(list(ASK.messages), Options(temperature=0.0, extra={"b": 2, "a": 1}), "call-2", 1, "call-2-1"),
    ]

    async def ask_both():
        return {(await cached.generate(request)).text for request in same}

    assert {"one"} == run(ask_both)


def test_an_attempt_that_asks_the_same_thrice_gets_three_answers(run, store):
    """The same request made three times has three entries, and a repeated call gets the same three."""
    asked = []

    async def numbered(request):
        asked.append(request)
        return f"answer {len(asked)}"

    async def check(text, view):
        votes.append([(await view.ask([Message("user", "good?")])).text for _ in range(3)])
        return True

    votes = []
    cached = Cached(numbered, store=store)

    async def twice():
        for _ in range(2):
            await RejectionSamplingStrategy().sample("hello", None, cached, [check])

    run(twice)
    assert [["answer 2", "answer 3", "answer 4"]] * 2 == votes
    assert 4 == len(asked)


def test_a_retry_is_the_same_sample_as_the_try_before(run):
    """A failed request releases its number, so that a retry gets the same sample."""
    backend = ScriptedBackend([TransientError("no"), "first", "second"])
    cached = Cached(backend)

    async def twice():
        return [(await RejectionSamplingStrategy().sample("hello", None, Retrying(cached))).text for _ in range(2)]

    assert ["first", "first"] == run(twice)
    assert 2 == len(backend.requests)


def test_failures_and_cancelled_requests_are_asked_again(run, store):
    """Only complete answers are cached."""
    backend = ScriptedBackend([TransientError("no"), After(10.0, "late"), "done"])
    cached = Cached(backend, store=store)

    async def thrice():
        with pytest.raises(TransientError):
            await cached.generate(ASK)
        with anyio.move_on_after(1):
            await cached.generate(ASK)
        return [(await cached.generate(ASK)).text for _ in range(2)]

    assert ["done", "done"] == run(thrice)


def test_two_who_want_the_same_sample_at_once_share_one_generation(run):
    """The second request waits for the first, and gets the same answer."""
    backend = ScriptedBackend([After(1.0, "one")])
    cached = Cached(backend)
    answers = []

    async def one():
        answers.append((await cached.generate(ASK)).text)

    async def both():
        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(one)

    run(both)
    assert ["one", "one"] == answers
    assert (1, 1, 1) == (len(backend.requests), cached.hits, cached.misses)


def test_if_the_first_of_two_is_cancelled_the_second_asks_for_itself(run):
    """A cancellation is of one, not of both."""
    backend = ScriptedBackend([After(10.0, "never"), After(1.0, "mine")])
    cached = Cached(backend)
    answers = []

    async def impatient():
        with anyio.move_on_after(1):
            await cached.generate(ASK)

    async def patient():
        answers.append(((await cached.generate(ASK)).text, anyio.current_time()))

    async def both():
        start = anyio.current_time()
        async with anyio.create_task_group() as group:
            group.start_soon(impatient)
            await anyio.sleep(0.5)
            group.start_soon(patient)
        return [(text, at - start) for text, at in answers]

    assert [("mine", 2.0)] == run(both)


def test_a_cancellation_at_any_step_leaves_nothing_behind():
    """Row 38: no lock is left behind, and the next request is answered."""
    made = []

    async def scenario(world):
        cached = Cached(ScriptedBackend(lambda request: After(world.latency(), "done")))
        made.append(cached)
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(cached.generate, ASK)

    def check(world, outcome):
        assert {} == made[-1]._locks

    cancel_at_every_step(scenario, check=check)


def test_a_stream_from_memory_comes_in_one_piece(run):
    """The first time as it grows, the second time as it is."""
    cached = Cached(SimulatedBackend(output_tokens=5))

    async def twice():
        pieces = [[], []]
        generations = [await cached.stream(ASK, pieces[place].append) for place in range(2)]
        return [len(one) for one in pieces], generations[0].text == generations[1].text == "".join(pieces[1])

    assert ([5, 1], True) == run(twice)


def test_what_a_requirement_cut_short_is_cut_short_again(run, store):
    """The samples stay the same where answers are checked while they grow: nothing is asked for twice."""
    backend = SimulatedBackend(pass_probability=0.0, slots=100, output_tokens=30)
    cached = Cached(backend, store=store)

    async def twice():
        strategy = RejectionSamplingStrategy(loop_budget=2, concurrency_budget=10)
        return [await strategy.sample("hello", None, cached, backend.requirements) for _ in range(2)]

    first, second = run(twice)
    assert [(one.outcome, one.text) for one in first.attempts] == [(one.outcome, one.text) for one in second.attempts]
    assert {"cut"} == {one.generation.finish_reason for one in second.attempts}
    assert (20, 20, Usage()) == (cached.hits, cached.misses, second.usage)


def test_what_was_cut_short_and_is_not_any_more_is_asked_for_anew(run, store):
    """A cached answer that was cut short is a transient error, and the next request asks anew."""
    backend = SimulatedBackend(output_tokens=10, seed=1)
    cached = Cached(backend, store=store)

    def enough(piece):
        raise LookupError("enough")

    async def sequence():
        with pytest.raises(LookupError):
            await cached.stream(ASK, enough)
        with pytest.raises(TransientError, match="cut short"):
            await cached.stream(ASK, lambda piece: None)
        streamed = await cached.stream(ASK, lambda piece: None)
        with pytest.raises(LookupError):
            await cached.stream(ASK, enough)
        return streamed, await cached.generate(ASK)

    streamed, remembered = run(sequence)
    assert 10 == streamed.usage.output_tokens
    assert streamed.text == remembered.text
    assert 1 == backend.statistics.served


def test_a_whole_answer_is_asked_for_where_only_a_part_is_known(run):
    """Without a receiver there is nothing to take back."""
    cached = Cached(SimulatedBackend(output_tokens=10))

    def enough(piece):
        raise LookupError("enough")

    async def sequence():
        with pytest.raises(LookupError):
            await cached.stream(ASK, enough)
        return await cached.generate(ASK)

    assert 10 == run(sequence).usage.output_tokens


def test_a_memory_store_forgets_what_was_not_used_for_longest():
    """It has a bound, and being read counts as being used."""
    store = MemoryStore(2)
    store.put("a", Generation("a"))
    store.put("b", Generation("b"))
    store.get("a")
    store.put("c", Generation("c"))

    assert [True, False, True] == [store.get(key) is not None for key in "abc"]
    assert 2 == len(store)


def test_a_file_store_outlives_the_process_that_wrote_it(run, tmp_path):
    """A restored answer has all fields but the usage, which was already paid for."""
    path = tmp_path / "answers.db"
    whole = Generation("text\ud800\n\0", Usage(1, 2, 0.5), "length", "model", reasoning="because")

    async def ask(backend):
        async with Cached(backend, store=path) as cached:
            return await cached.generate(ASK)

    assert whole == run(ask, ScriptedBackend([whole]))
    assert attrs.evolve(whole, usage=Usage()) == run(ask, ScriptedBackend([]))


def test_namespaces_keep_backends_apart(run):
    """Two backends may share one store without taking each other's answers."""
    store = MemoryStore()
    small = Cached(ScriptedBackend(["small"]), store=store, namespace="small")
    large = Cached(ScriptedBackend(["large"]), store=store, namespace="large")

    async def both():
        return [(await cached.generate(ASK)).text for cached in (small, large)]

    assert ["small", "large"] == run(both)


def _text(path):
    path.write_text("not a database, " * 100)


def _other_database(path):
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE other (x)")
    database.close()


def _other_version(path):
    FileStore(path).close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 2")
    database.close()


def _with_a_trigger(path):
    FileStore(path).close()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TRIGGER t AFTER INSERT ON answers BEGIN DELETE FROM answers; END")
    database.close()


@pytest.mark.parametrize("craft", [_text, _other_database, _other_version, _with_a_trigger])
def test_a_file_that_is_no_cache_is_refused(tmp_path, craft):
    """Row 76: text, someone else's database, another version, or one that would do more than keep answers."""
    path = tmp_path / "answers.db"
    craft(path)

    with pytest.raises(FileRefused, match=r"answers\.db"):
        FileStore(path)


@pytest.mark.parametrize(
    "answer",
    [
        "not json",
        "[]",
        "{}",
        '{"text": 1}',
        '{"text": "a", "usage": {"output_tokens": -1}}',
        '{"text": "a", "usage": {"cost": NaN}}',
        '{"text": "a", "usage": 3}',
        '{"text": "a", "model": ["x"]}',
        '{"text": "a", "__class__": "os.system"}',
        '{"text": "a", "openai": 3}',
        '{"text": "a", "openai": {"tool_calls": {}}}',
        '{"text": "a", "openai": {"tool_calls": [{"id": 1, "name": "a", "arguments": ""}]}}',
        '{"text": "a", "openai": {"tool_calls": [{"id": "1"}]}}',
        '{"text": "a", "openai": {"choices": [1]}}',
        '{"text": "a", "openai": {"refusal": 1}}',
        '{"text": "a", "openai": {"extra": 1}}',
        '{"text": "a", "text": "b"}',
        "[" * 100_000,
        '{"text": "a", "usage": {"input_tokens": ' + "9" * 5_000 + "}}",
    ],
)
def test_a_crafted_answer_is_refused(run, tmp_path, answer):
    """Rows 76 and 78: whatever stands there, it is an answer of ours or a typed error."""
    path = tmp_path / "answers.db"

    async def ask():
        async with Cached(ScriptedBackend(["first"]), store=path) as cached:
            await cached.generate(ASK)
            with sqlite3.connect(path) as database:
                database.execute("UPDATE answers SET answer = ?", (answer,))
            database.close()
            await cached.generate(ASK)

    with pytest.raises(FileRefused, match="is not a cache, or it is damaged"):
        run(ask)


def test_options_that_cannot_be_told_apart_are_refused(run):
    """An object without a JSON form might be another one next time."""
    request = Request(ASK.messages, Options(extra={"callback": len}))

    with pytest.raises(TypeError, match=r"extra\['callback'\] must be made of JSON values.*got <built-in"):
        run(Cached(SimulatedBackend()).generate, request)


def test_a_model_class_stands_for_its_schema(run):
    """Two classes with the same schema ask the same question."""
    pydantic = pytest.importorskip("pydantic")

    def schema():
        return pydantic.create_model("Answer", value=(int, ...))

    cached = Cached(ScriptedBackend(["one"]))

    async def both():
        return [(await cached.generate(Request(ASK.messages, Options(schema=schema())))).text for _ in range(2)]

    assert ["one", "one"] == run(both)


def test_bad_settings_are_refused_by_name():
    """The error names the argument, shows the value and says what is allowed."""
    with pytest.raises(TypeError, match=r"store must be a path, or an object with get\(key\)"):
        Cached(SimulatedBackend(), store=3)
    with pytest.raises(TypeError, match="namespace must be a str"):
        Cached(SimulatedBackend(), namespace=3)
    with pytest.raises(ValueError, match="max_entries must be >= 1"):
        MemoryStore(0)


def test_the_repr_says_where_answers_are_kept(tmp_path):
    """The repr has the store and the backend."""
    path = tmp_path / "answers.db"

    assert "Cached(texts, store=MemoryStore(10000) with 0 answers)" == repr(Cached(texts))
    assert f"Cached(texts, store=FileStore({str(path)!r}), namespace='n')" == repr(
        Cached(texts, store=path, namespace="n")
    )
