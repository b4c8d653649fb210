"""Keys that are equal for equal answers."""

import contextlib
from fractions import Fraction

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampling.strategies._arithmetic import NotArithmetic, evaluate
from sampling.strategies.keys import exact, expression, json_field, number

any_text = st.text(max_size=200) | st.text("0123456789+-*/^(){}\\frac boxed.,=%[]\"'", max_size=200)


class TestExact:
    @pytest.mark.parametrize("text", ["The Rhine", " the  rhine.\n", "**THE RHINE**", "Ｔｈｅ Ｒｈｉｎｅ"])
    def test_case_spacing_width_and_punctuation_around_it_do_not_matter(self, text):
        """Texts that a reader would call equal have equal keys."""
        assert "the rhine" == exact(text)

    @pytest.mark.parametrize("text", ["", " \n", "..."])
    def test_an_empty_answer_does_not_vote(self, text):
        """An empty text has no key."""
        assert exact(text) is None

    def test_parsed_values_are_compared_as_they_are(self):
        """A dict, a list or a set has a hashable key. The order of a dict or set does not matter."""
        assert exact({"a": [1, 2], "b": {3}}) == exact({"b": {3}, "a": [1, 2]})
        assert exact({"a": [1, 2]}) != exact({"a": [2, 1]})
        assert exact(1) == exact(1.0)
        assert exact(True) != exact(1)


class TestNumber:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("42", 42),
            ("The answer is 42.", 42),
            ("17 + 25 = 42", 42),
            ("1,000", 1000),
            ("1,234,567.50 €", Fraction("1234567.5")),
            ("-3", -3),
            ("\N{MINUS SIGN}3", -3),
            ("1e3", 1000),
            (".5", Fraction(1, 2)),
            ("pages 1,2", 2),
            (7, 7),
            (0.1, Fraction(1, 10)),
        ],
    )
    def test_the_last_number_counts(self, text, expected):
        """Its notation and the text around it do not matter."""
        assert expected == number(text)

    @pytest.mark.parametrize("text", ["", "none", "-", float("nan"), float("inf"), "9" * 400])
    def test_an_answer_without_a_number_does_not_vote(self, text):
        """Neither does infinity, nor an absurdly long number."""
        assert number(text) is None


class TestExpression:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("2 * (3 + 4)", 14),
            ("2 × 7", 14),
            ("so x = 28 / 2", 14),
            (r"Thus \boxed{\frac{28}{2}}.", 14),
            (r"\boxed{ \left( 2^3 + 6 \right) }", 14),
            ("First 3 + 4 = 7.\nThen 7 * 2 = 14.", 14),
            (r"$\dfrac{2}{6}$", Fraction(1, 3)),
            ("1/3", Fraction(1, 3)),
            ("-2^2", -4),
            ("2^-1", Fraction(1, 2)),
            ("50%", Fraction(1, 2)),
            ("1,000 + 1", 1001),
            (14, 14),
        ],
    )
    def test_what_works_out_to_the_same_is_the_same(self, text, expected):
        """Values are exact, in all notations that models use."""
        assert expected == expression(text)

    @pytest.mark.parametrize("text", ["x + 1", "1/0", "2^1000", "1 2", "__import__('os')", "((1", "9**9**9**9"])
    def test_what_is_no_arithmetic_is_compared_as_text(self, text):
        """Other text is never executed, and never a number."""
        assert exact(text.strip(".!?,;:\"'`* $")) == expression(text)

    @pytest.mark.parametrize(
        "text",
        ["(" * 900, "-" * 999 + "1", "2^" * 300 + "1", "9" * 999 + "^9", "1+" * 499 + "1", r"\frac{" * 150, "x" * 9999],
    )
    def test_hostile_expressions_are_bounded(self, text):
        """Expressions that are too deep, too long or too large never crash."""
        with contextlib.suppress(NotArithmetic):
            evaluate(text)


class TestJsonField:
    def test_a_field_of_the_json_counts(self):
        """It may be in a fenced block, and the path may be nested."""
        key = json_field("items.0.name")
        assert key('{"items": [{"name": "Rhine"}], "why": "long"}') == key(
            'Here:\n```json\n{"items": [{"name": "Rhine"}]}\n```'
        )
        assert "Rhine" == key({"items": [{"name": "Rhine"}]})

    @pytest.mark.parametrize("text", ["", "no", "{}", '{"a": null}', '{"a"', "[1]", "[" * 100_000, '{"b": {"a": 1}}'])
    def test_an_answer_without_it_does_not_vote(self, text):
        """JSON that is nested too deeply does not vote either."""
        assert json_field("a")(text) is None

    def test_a_field_of_an_object_that_the_parser_made_counts(self):
        """Private attributes do not count."""

        @attrs.frozen
        class River:
            name: str

        assert "Rhine" == json_field("name")(River("Rhine"))
        assert json_field("__class__")(River("Rhine")) is None

    def test_structures_are_compared_by_what_is_in_them(self):
        """The order of keys does not matter, but that of a list does."""
        key = json_field("a")
        assert key('{"a": {"x": 1, "y": [2]}}') == key('{"a": {"y": [2], "x": 1}}')
        assert key('{"a": [1, 2]}') != key('{"a": [2, 1]}')

    def test_bad_input_is_refused(self):
        """The path must not be empty."""
        with pytest.raises(ValueError, match="path must not be empty"):
            json_field("")


@given(any_text)
def test_no_text_breaks_a_key(text):
    """For every text, a key is hashable or None, and the same each time."""
    for key in (exact, number, expression, json_field("a.0")):
        assert hash(key(text)) == hash(key(text))
