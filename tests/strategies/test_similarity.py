"""ROUGE-L and cosine similarity."""

import random

import pytest

from sampling._text.similarity import MAX_WORDS, cosine, rouge_l
from sampling._text.stemming import stem


def common_length(one, other):
    """Return the length of the longest common subsequence, by the textbook table."""
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, a in enumerate(one):
        for j, b in enumerate(other):
            table[i + 1][j + 1] = table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


def test_rouge_l_is_that_of_the_longest_common_subsequence():
    """It holds for 1,000 random pairs, in both directions."""
    draw = random.Random(7)
    for _ in range(1_000):
        one, other = ([draw.choice("abcde") for _ in range(draw.randrange(1, 20))] for _ in range(2))
        expected = 2 * common_length(one, other) / (len(one) + len(other))
        assert expected == rouge_l(" ".join(one), " ".join(other)) == rouge_l(" ".join(other), " ".join(one))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [("", "", 1.0), ("a", "", 0.0), ("", "a", 0.0), ("A b", "a  B\n", 1.0), ("a b", "c d", 0.0)],
)
def test_the_edges(one, other, expected):
    """Empty texts are equal. Case and whitespace do not count."""
    assert expected == rouge_l(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Paris", "Paris!"),
        ("«Paris», he said.", "paris he said"),
        ("They connected the rivers", "they connect the river"),
        ("東京です。", "東京です"),
        ("Straße", "STRASSE"),
        ("🎉", "🎉"),
    ],
)
def test_punctuation_case_and_endings_do_not_count(one, other):
    """Texts with the same words are the same, in any script."""
    assert 1.0 == rouge_l(one, other)


@pytest.mark.parametrize(("one", "other"), [("東京です", "大阪です"), ("🎉", "🚀"), ("1.5", "15"), ("Paris", "London")])
def test_other_words_count(one, other):
    """Texts with other words are not the same."""
    assert rouge_l(one, other) < 1.0


@pytest.mark.parametrize(
    ("stemmed", "words"),
    [
        ("connect", "connect connected connecting connection connections"),
        ("caress", "caresses caress"),
        ("poni", "ponies"),
        ("agre", "agreed"),
        ("hop", "hopping"),
        ("file", "filing"),
        ("troubl", "troubled trouble troubles"),
        ("happi", "happy happiness"),
        ("relat", "relational relate relating"),
        ("oper", "operator operate"),
        ("hope", "hopeful hopefulness"),
        ("sensibl", "sensibiliti"),
        ("roll", "roll"),
        ("control", "controll"),
        ("yellow", "yellow"),
        ("enjoi", "enjoy"),
        ("sky", "sky"),
        ("flüsse", "flüsse"),
        ("a" * 100_000, "a" * 100_000),
    ],
)
def test_stems_are_those_of_porter(stemmed, words):
    """Examples of the paper. Words of other languages, and no words at all, stay as they are."""
    assert {stemmed} == {stem(word) for word in words.split()}


def test_only_so_many_words_are_looked_at():
    """The time is bounded for texts of any length."""
    words = "a " * MAX_WORDS
    assert 1.0 == rouge_l(words + "b " * 100_000, words + "c " * 100_000)


def test_cosine():
    """It is the cosine of the angle, or 0 for a zero vector."""
    assert 1.0 == pytest.approx(cosine([1, 2], [2, 4]))
    assert (0.0, 0.0, -1.0) == (cosine([1, 0], [0, 1]), cosine([0, 0], [1, 1]), cosine([1, 0], [-2, 0]))
    with pytest.raises(ValueError, match="both vectors must have the same length, got 1 and 2"):
        cosine([1], [1, 2])
