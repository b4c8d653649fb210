"""Ready-made requirements: verdicts, reasons, and early cuts."""

from inspect import isawaitable

import anyio
import pytest
from structlog.testing import capture_logs

from sampling import Generation, MissingExtra, MultiTurnStrategy, RejectionSamplingStrategy, Requirement, checks
from sampling._engine.validation import may_still_pass
from sampling.testing import ScriptedBackend


async def sample(text, *requirements):
    return await RejectionSamplingStrategy().sample("q", None, ScriptedBackend([text]), requirements)


def verdict(requirement, text):
    """Return what a check says, also if it takes so long that it goes on in a thread."""
    said = requirement.check(text)
    if isawaitable(said):
        said = anyio.run(finish, said)
    return requirement.read_verdict(said)


async def finish(said):
    return await said


def cut_at(requirement, text):
    """Return the number of characters before the requirement cuts a stream, or None."""
    for length in range(len(text) + 1):
        if not may_still_pass(requirement, text[:length]).passed:
            return length
    return None


def is_told(requirement, text, *words):
    failed = verdict(requirement, text)
    assert not failed.passed
    for word in words:
        assert word in failed.reason


class Typist:
    """A backend that streams its answers letter by letter, and counts the letters."""

    def __init__(self, *answers):
        self._answers = list(answers)
        self.given = 0

    async def generate(self, request):
        return await self.stream(request, lambda piece: None)

    async def stream(self, request, receive):
        answer = self._answers.pop(0)
        for letter in answer:
            self.given += 1
            receive(letter)
        return Generation(answer)


OBJECT = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z]"},
        "legs": {"type": "array", "items": {"$ref": "#/$defs/leg"}},
        "class": {"enum": ["first", "second"]},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"leg": {"type": "object", "properties": {"km": {"type": "integer", "minimum": 1}}}},
}


class TestMatches:
    @pytest.mark.parametrize(("text", "expected"), [("2026-11-16", True), ("on 2026-11-16", False), ("", False)])
    def test_the_whole_answer_has_to_match(self, run, text, expected):
        """A text that contains a date is not a date."""
        result = run(sample, text, checks.matches(r"\d{4}-\d\d-\d\d"))
        assert expected is result.success
        if not expected:
            assert (
                r"matches \d{4}-\d\d-\d\d: "
                r"the whole answer must match \d{4}-\d\d-\d\d, with nothing before or after it",
            ) == result.best.complaints

    def test_the_description_is_told_too(self):
        """A description helps a model more than a pattern."""
        is_told(checks.matches(r"\d{4}", "a year"), "soon", "it is not a year", r"\d{4}")

    # Without a virtual clock, because a thread works outside of it.
    async def test_a_pattern_that_explodes_is_stopped(self, anyio_backend):
        """Row 54: the check fails with an error, and the event loop is not blocked."""
        with capture_logs():
            result = await sample("a" * 50 + "!", checks.matches(r"(a|a|aa)+$", timeout_s=0.05))
        assert not result.success
        assert [TimeoutError] == [type(error) for error in result.errors]

    def test_a_pattern_that_is_none_says_so(self):
        """The error has the pattern and the problem."""
        with pytest.raises(ValueError, match=r"pattern must be a regular expression, got '\(': missing \)"):
            checks.matches("(")

    @pytest.mark.parametrize(
        ("pattern", "text", "expected"),
        [
            (r"\d{4}-\d\d", "2030-12", None),
            (r"\d{4}-\d\d", "2030 ", 5),
            (r"\d{4}-\d\d", "Sure! 2030-12", 1),
            (r"(?!.*bad).*", "good", None),
            (r"(?=.*z)a+z", "aaz", None),
            (r"yes|no", "never", 2),
        ],
    )
    def test_a_text_that_can_never_match_is_cut(self, pattern, text, expected):
        """It is cut at the first wrong letter, and not before."""
        assert expected == cut_at(checks.matches(pattern), text)

    def test_long_texts_are_looked_at_when_they_end(self):
        """Every piece would be matched from the start again."""
        assert may_still_pass(checks.matches("a+"), "b" * 5_000).passed


class TestOneOf:
    def test_one_of_them_and_nothing_else(self):
        """Surrounding whitespace does not count."""
        requirement = checks.one_of("yes", "no way")
        assert [True, True, False, False, False] == [
            verdict(requirement, text).passed for text in (" yes\n", "no way", "Yes", "no", "yes, of course")
        ]
        is_told(requirement, "maybe", "'maybe'", "answer with one of yes, no way")

    def test_case_may_be_ignored(self):
        """`ignore_case=True` accepts any case."""
        requirement = checks.one_of("Yes", "No", ignore_case=True)
        assert verdict(requirement, "YES").passed
        assert None is cut_at(requirement, "yEs \n")

    @pytest.mark.parametrize(
        ("text", "expected"), [("yes", None), ("\n no way \n", None), ("nope", 3), ("yes!", 4), ("Sure, yes", 1)]
    )
    def test_what_can_not_become_one_is_cut(self, text, expected):
        """It is cut at the first letter that fits no choice."""
        assert expected == cut_at(checks.one_of("yes", "no way"), text)


class TestLength:
    @pytest.mark.parametrize(
        ("bounds", "fits", "too_short", "too_long"),
        [
            ({"min_chars": 2, "max_chars": 4}, "abc", "a", "abcde"),
            ({"min_words": 2, "max_words": 3}, "a b", "a", "a b c d"),
            ({"min_lines": 2, "max_lines": 2}, "a\nb\n", "a\n", "a\nb\nc"),
        ],
    )
    def test_characters_words_and_lines_are_counted(self, bounds, fits, too_short, too_long):
        """Surrounding whitespace does not count."""
        requirement = checks.length(**bounds)
        assert verdict(requirement, f"  {fits} \n").passed
        is_told(requirement, too_short, "make it longer", "at least" if "lines" not in str(bounds) else "exactly 2")
        is_told(requirement, too_long, "make it shorter")
        assert None is cut_at(requirement, fits)
        assert cut_at(requirement, too_long) is not None

    def test_it_says_how_many_there_are_and_how_many_there_may_be(self):
        """The reason has both numbers and the fix."""
        is_told(checks.length(max_words=2), "one two three", "it has 3 words instead of at most 2: make it shorter")
        is_told(checks.length(min_lines=2), "one", "it has 1 line instead of at least 2: make it longer")
        assert "has at most 1 word, exactly 2 lines" == checks.length(max_words=1, min_lines=2, max_lines=2).description

    def test_a_text_that_is_too_short_may_still_grow(self):
        """A partial check fails only if a maximum is exceeded."""
        assert None is cut_at(checks.length(min_words=3), "one two")
        assert 9 == cut_at(checks.length(max_words=2, min_chars=100), "one two three")

    def test_a_stream_is_cut_as_soon_as_it_is_too_long(self, run):
        """The next attempt gets the reason."""
        backend = Typist("one two three four five", "one two")

        async def main():
            strategy = MultiTurnStrategy(loop_budget=2)
            return await strategy.sample("q", None, backend, [checks.length(max_words=2)])

        result = run(main)
        assert "one two" == result.value
        assert len("one two t") + len("one two") == backend.given


class TestNumber:
    @pytest.mark.parametrize("text", ["3", " -2.5\n", "1,000", "1e3", "+7"])
    def test_numbers_are_numbers(self, text):
        """All common notations pass."""
        assert verdict(checks.number(), text).passed

    @pytest.mark.parametrize(
        "text", ["", "three", "3 apples", "1,00", "0x10", "nan", "inf", "1e999", "9" * 1000, "1_000"]
    )
    def test_nothing_else_is(self, text):
        """Some texts that Python's float accepts fail."""
        assert not verdict(checks.number(), text).passed

    def test_bounds_are_inclusive(self):
        """Values at the bounds pass, and the reason states the bounds."""
        requirement = checks.number(at_least=0, at_most=10)
        assert [True, True, False, False] == [verdict(requirement, text).passed for text in ("0", "10", "-1", "10.01")]
        is_told(requirement, "11", "'11' is not a number of at least 0 and of at most 10")
        is_told(requirement, "about 5", "answer with a number of at least 0 and of at most 10 in digits")

    def test_a_whole_number_has_no_fraction(self):
        """2.0 counts as a whole number."""
        assert [True, False] == [verdict(checks.number(whole=True), text).passed for text in ("2.0", "2.5")]


class TestJson:
    @pytest.mark.parametrize("text", ['{"a": [1, 2.5e3, "x\\u00e4", null, true]}', " [1]\n", "3", '"x"'])
    def test_json_is_json(self, text):
        """Any JSON passes, and no prefix of it is cut."""
        assert verdict(checks.json(), text).passed
        assert None is cut_at(checks.json(), text)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "Sure!",
            "{'a': 1}",
            '{"a": 1} ok?',
            '{"a": NaN}',
            '{"a": 1, "a": 2}',
            "[" * 100_000,
            "9" * 10_000,
            '{"a":1,}',
        ],
    )
    def test_nothing_else_is(self, text):
        """Row 78: JSON that is too deep, too long, ambiguous or invalid fails."""
        is_told(checks.json(), text, "it is not JSON", "answer with one JSON value")

    def test_an_answer_without_end_is_not_read(self):
        """Row 78: there is a size limit before the parser."""
        is_told(checks.json(), f'"{"a" * 1_000_001}"', "longer than 1,000,000 characters")

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("Here it is: {}", 1),
            ("{'a'", 2),
            ('{"a" 1', 6),
            ('{"a": 1} and', 10),
            ("[1,, 2]", 4),
            ("[tru!", 5),
            ('"\\x', 3),
        ],
    )
    def test_what_can_not_become_json_is_cut(self, text, expected):
        """It is cut at the first letter that can't be JSON."""
        assert expected == cut_at(checks.json(), text)

    def test_a_fence_is_allowed_on_request(self):
        """Only the fenced block counts, and nothing is cut."""
        fenced = 'Sure:\n```json\n{"a": 1}\n```\nAnything else?'
        assert not verdict(checks.json(), fenced).passed
        assert verdict(checks.json(fenced=True), fenced).passed
        assert checks.json(fenced=True).partial is None


class TestJsonSchema:
    def test_what_fits_passes(self):
        """The schema has a reference into itself."""
        requirement = checks.json_schema(OBJECT)
        assert verdict(requirement, '{"name": "Anna", "legs": [{"km": 3}], "class": "first"}').passed

    def test_each_problem_is_told_with_its_place(self):
        """The reason has the place, the problem and the allowed values of all problems."""
        answer = '{"name": "anna", "legs": [{"km": 3}, {"km": "far"}, {"km": 0}], "class": "third", "x": 1}'
        is_told(
            checks.json_schema(OBJECT),
            answer,
            "at /name: 'anna' does not match ^[A-Z]",
            "at /legs/1/km: must be of type integer, got 'far'",
            "at /legs/2/km: 0 is less than the minimum of 1",
            "at /class: 'third' is not one of ['first', 'second']",
            "at the top level: Additional properties are not allowed ('x' was unexpected)",
        )
        is_told(checks.json_schema(OBJECT), "{}", "at the top level: 'name' is a required property")

    def test_of_alternatives_the_nearest_is_told(self):
        """A model can't act on the message that no alternative fits."""
        schema = {"anyOf": [{"type": "object", "required": ["a"]}, {"type": "string"}]}
        is_told(checks.json_schema(schema), "{}", "at the top level: 'a' is a required property")

    def test_many_problems_are_told_in_part(self):
        """The reason is limited in the number and the length of problems."""
        schema = {"type": "array", "items": {"type": "string", "maxLength": 3}}
        reason = verdict(checks.json_schema(schema), str([*range(1000), *["x"] * 0]).replace("'", '"')).reason
        assert reason.endswith("and 995 more")
        assert len(verdict(checks.json_schema(schema), f'["{"x" * 100_000}"]').reason) < 300

    @pytest.mark.parametrize("target", ["http://127.0.0.1:9/x.json", "other.json", "file:///etc/passwd"])
    def test_nothing_is_ever_fetched(self, target):
        """Row 75: a reference to another document is an error at construction."""
        with pytest.raises(ValueError, match=r"a \$ref in schema must point into the schema"):
            checks.json_schema({"properties": {"a": {"$ref": target}}})

    def test_a_reference_that_leads_nowhere_fails_closed(self, run):
        """The validation has the error."""
        with capture_logs():
            result = run(sample, "3", checks.json_schema({"$ref": "#/$defs/nope"}))
        assert not result.success
        assert 1 == len(result.errors)

    # Without a virtual clock, because a thread works outside of it.
    async def test_a_pattern_in_a_schema_can_not_stall_the_process(self, anyio_backend, monkeypatch):
        """Row 54: a pattern in a schema can not stall the process."""
        monkeypatch.setattr("sampling._schemas.validation._PATTERN_TIMEOUT_S", 0.05)
        schema = {"type": "string", "pattern": "^(a|a|aa)+$"}
        with capture_logs():
            result = await sample(f'"{"a" * 50}!"', checks.json_schema(schema))
        assert [TimeoutError] == [type(error) for error in result.errors]

    @pytest.mark.parametrize("keyword", [{}, {"additionalProperties": False}])
    async def test_a_pattern_for_names_can_not_stall_the_process_either(self, anyio_backend, monkeypatch, keyword):
        """Row 54: a pattern for names can not stall the process either."""
        monkeypatch.setattr("sampling._schemas.validation._PATTERN_TIMEOUT_S", 0.05)
        schema = {"type": "object", "patternProperties": {"^(a|a|aa)+$": {}}, **keyword}
        with capture_logs():
            result = await sample(f'{{"{"a" * 50}!": 1}}', checks.json_schema(schema))
        assert [TimeoutError] == [type(error) for error in result.errors]

    def test_names_that_match_a_pattern_are_held_to_its_schema(self):
        """Names that fit no pattern and no property are reported."""
        schema = {
            "properties": {"id": {}},
            "patternProperties": {"^n_": {"type": "number"}},
            "additionalProperties": {"type": "string"},
        }
        assert verdict(checks.json_schema(schema), '{"id": [], "n_a": 1, "other": "x"}').passed
        is_told(checks.json_schema(schema), '{"n_a": "x"}', "at /n_a: must be of type number")
        is_told(checks.json_schema(schema), '{"other": 1}', "at /other: must be of type string")
        closed = {**schema, "additionalProperties": False}
        is_told(checks.json_schema(closed), '{"n_a": 1, "other": 1}', "not allowed ('other' was unexpected)")
        assert verdict(checks.json_schema(closed), "[]").passed

    @pytest.mark.parametrize(
        "elsewhere",
        [
            {"patternProperties": {"^a": {}}},
            {"allOf": [{"patternProperties": {"^a": {}}}]},
            {"$ref": "#/$defs/a", "$defs": {"a": {"patternProperties": {"^a": {}}}}},
        ],
    )
    def test_patterns_that_could_not_be_stopped_are_refused(self, elsewhere):
        """Row 54: such patterns would use the standard library's `re`."""
        with pytest.raises(ValueError, match="use additionalProperties"):
            checks.json_schema({**elsewhere, "unevaluatedProperties": False})

    def test_what_is_no_schema_is_refused(self):
        """The error is raised at construction, and has the place."""
        with pytest.raises(ValueError, match="schema must be a valid JSON schema, got an invalid one, at /type"):
            checks.json_schema({"type": "strange"})


class TestSimilarTo:
    def test_likeness_is_the_score(self):
        """The reason has the score and the threshold, but not the reference, which the model could repeat."""
        requirement = checks.similar_to("the cat sat on the mat", at_least=0.8)
        assert (True, 1.0) == (
            verdict(requirement, "The cat sat on the mat").passed,
            verdict(requirement, "the cat sat on the mat").score,
        )
        is_told(requirement, "the dog sat", "0.44", "0.8 is needed")
        assert "cat" not in verdict(requirement, "the dog sat").reason

    def test_any_function_of_two_texts_will_do(self):
        """The score need not be between 0 and 1."""
        requirement = checks.similar_to("abc", at_least=-1, similarity=lambda one, other: -abs(len(one) - len(other)))
        assert [True, False] == [verdict(requirement, text).passed for text in ("abcd", "abcdef")]


class TestPythonParses:
    @pytest.mark.parametrize("text", ["x = 1", "Sure:\n```python\ndef f():\n    return 1\n```", "'\\d'"])
    def test_python_is_python(self, text):
        """The code may be fenced or not. A SyntaxWarning does not count."""
        assert verdict(checks.python_parses(), text).passed

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("def f(:", "invalid syntax at line 1, 'def f(:'"),
            ("x = 1\n  y = 2", "unexpected indent at line 2"),
            ("", "there is no code"),
            ("```\n```", "there is no code"),
            ("x\0y", "null bytes"),
            ("x = '\ud800'", "surrogates not allowed"),
            ("-" * 40_000 + "1", "nested too deeply"),
            ("x" * 50_001, "longer than 50,000 characters"),
        ],
    )
    def test_nothing_else_is(self, text, words):
        """The reason has the place and the problem. Code that is too deep or too long is safe."""
        is_told(checks.python_parses(), text, words)


def test_an_extra_that_is_missing_is_named(monkeypatch):
    """The error has the command that installs it."""
    monkeypatch.setitem(__import__("sys").modules, "regex", None)
    with pytest.raises(MissingExtra, match=r'matches\(\) needs the package \'regex\': pip install "sampling\[regex\]"'):
        checks.matches("a")
    monkeypatch.setitem(__import__("sys").modules, "jsonschema", None)
    with pytest.raises(MissingExtra, match=r'pip install "sampling\[jsonschema\]"'):
        checks.json_schema({})


def test_everything_ready_made_is_a_requirement():
    """Every name of the module except the helpers returns a requirement."""
    made = [
        checks.all_of("a"),
        checks.any_of("a"),
        checks.grounded(),
        checks.json(),
        checks.json_schema({}),
        checks.judge("a"),
        checks.length(max_chars=1),
        checks.markdown(),
        checks.matches("a"),
        checks.model(dict[str, int]),
        checks.not_("a"),
        checks.number(),
        checks.one_of("a"),
        checks.python_imports(),
        checks.python_parses(),
        checks.python_runs(),
        checks.similar_to("a"),
        checks.tool_calls(),
        checks.weighted([("a", 1)]),
    ]
    assert len(made) + len({"rouge_l", "unfenced"}) == len(checks.__all__)
    assert {Requirement} == {type(one) for one in made}
