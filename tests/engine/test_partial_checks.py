"""A requirement with `partial=` sees the text as it grows, and cuts a generation that can no longer pass."""

import anyio
import pytest

from sampling import (
    BackendError,
    Generation,
    IterationFinished,
    MultiTurnStrategy,
    Options,
    RejectionSamplingStrategy,
    Requirement,
    TransientError,
    Usage,
    report_usage,
)
from sampling.errors import BadVerdict
from sampling.testing import CapturedEvents


class Typewriter:
    """A backend that streams one word a second, reports usage, and can be stopped."""

    def __init__(self, *answers):
        self._answers = list(answers)
        self.words_given = 0
        self.requests = []

    async def generate(self, request):
        return await self.stream(request, lambda piece: None)

    async def stream(self, request, receive):
        self.requests.append(request)
        words = self._answers.pop(0).split(" ")
        for number, word in enumerate(words, start=1):
            await anyio.sleep(1.0)
            self.words_given += 1
            report_usage(Usage(10, number))
            receive(word if number == 1 else f" {word}")
        return Generation(" ".join(words), Usage(10, len(words)))


def no_digits(text):
    return not any(character.isdigit() for character in text)


NO_DIGITS = Requirement("has no digits", check=no_digits, partial=lambda text: (no_digits(text), "there is a digit"))


async def sample(strategy, backend, reqs, **arguments):
    return await strategy.sample("q", None, backend, reqs, **arguments)


def test_a_hopeless_generation_is_cut_at_once(run):
    """The generation is stopped at once, and the repair has the reason."""
    backend = Typewriter("one 2 three four five six", "one two")
    captured = CapturedEvents()
    result = run(sample, MultiTurnStrategy(loop_budget=2), backend, [NO_DIGITS], hooks=captured)
    cut, answer = result.slices
    assert ("invalid", "one 2", "cut", 2.0) == (cut.outcome, cut.text, cut.generation.finish_reason, cut.finished_s)
    assert "one two" == answer.text == result.value
    assert 4 == backend.words_given
    assert "there is a digit" in backend.requests[1].messages[-1].content
    assert "one 2" == backend.requests[1].messages[-2].content
    assert 2 == len(captured.of(IterationFinished))


def test_what_a_cut_generation_used_and_saved_is_on_the_result(run):
    """Tokens saved: up to max_tokens, or to the longest answer so far."""
    backend = Typewriter("one 2 three four", "one two")
    result = run(sample, RejectionSamplingStrategy(loop_budget=2), backend, [NO_DIGITS], options=Options(max_tokens=10))
    assert (Usage(10, 2), 8) == (result.slices[0].usage, result.slices[0].tokens_saved)
    assert (Usage(20, 4), 8) == (result.usage, result.tokens_saved)
    assert "24 tokens (8 saved)" in str(result)
    backend = Typewriter("a b c d e f", "1", "2 x")
    reqs = [Requirement("never", check=lambda text: False), NO_DIGITS]
    result = run(sample, RejectionSamplingStrategy(loop_budget=3), backend, reqs)
    assert [0, 5, 5] == [one.tokens_saved for one in result.slices]


def test_a_text_that_may_still_pass_goes_on_to_its_check(run):
    """The last word is the check's."""
    seen = []
    requirement = Requirement(
        "ends well", check=lambda text: text.endswith("end"), partial=lambda text: seen.append(text) is None
    )
    result = run(sample, RejectionSamplingStrategy(loop_budget=2), Typewriter("not yet", "the end"), [requirement])
    assert "the end" == result.value
    assert ["not", "not yet", "the", "the end"] == seen


def test_without_a_partial_check_nothing_is_streamed(run):
    """Without partial checks, the backend is not asked to stream."""
    backend = Typewriter("one two")
    backend.stream, stream = None, backend.stream
    backend.generate = lambda request: stream(request, lambda piece: None)
    assert run(sample, RejectionSamplingStrategy(), backend, [no_digits]).success


def test_a_backend_that_can_not_stream_is_checked_at_the_end(run):
    """A plain function will do."""

    async def backend(request):
        return "1 2 3"

    result = run(sample, RejectionSamplingStrategy(), backend, [NO_DIGITS])
    assert ["invalid"] == [one.outcome for one in result.slices]
    assert "1 2 3" == result.text


def test_a_partial_check_that_raises_fails_the_attempt(run):
    """Fails closed, with the error kept."""

    def broken(text):
        raise LookupError("in the partial check")

    requirement = Requirement("is well", check=lambda text: True, partial=broken)
    result = run(sample, RejectionSamplingStrategy(), Typewriter("one two"), [requirement])
    assert ["invalid"] == [one.outcome for one in result.slices]
    assert [LookupError] == [type(error) for error in result.errors]


def test_a_partial_check_without_a_clear_answer_is_a_type_error(run):
    """Row 53: as for a check."""
    requirement = Requirement("is well", check=lambda text: True, partial=lambda text: None)
    with pytest.raises(BadVerdict, match="'is well'"):
        run(sample, RejectionSamplingStrategy(), Typewriter("one two"), [requirement])


def test_a_backend_that_wraps_the_interruption_is_understood(run):
    """A cut is a cut, whatever a backend makes of it on its way out."""

    class Wrapping(Typewriter):
        async def stream(self, request, receive):
            try:
                return await super().stream(request, receive)
            except Exception as error:
                raise TransientError("interrupted") from error

    result = run(sample, RejectionSamplingStrategy(), Wrapping("1 2"), [NO_DIGITS])
    assert ["invalid"] == [one.outcome for one in result.attempts]


def test_an_error_of_the_stream_itself_is_an_error(run):
    """An error of the stream makes the attempt errored, not invalid."""

    class Failing(Typewriter):
        async def stream(self, request, receive):
            receive("one")
            raise BackendError("the line went dead")

    with pytest.raises(BackendError, match="the line went dead"):
        run(sample, RejectionSamplingStrategy(), Failing("x"), [NO_DIGITS])
