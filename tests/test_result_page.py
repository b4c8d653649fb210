"""Pictures of results: lanes as SVG, attempts as HTML, whatever the texts contain."""

from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree as ET

import attrs
import pytest

from sampling import (
    Action,
    Generation,
    MultiTurnStrategy,
    RateLimited,
    RejectionSamplingStrategy,
    Requirement,
    SamplingResult,
    Usage,
)
from sampling._result_page import _lanes
from sampling.testing import After, ScriptedBackend
from tests.contracts.kinds import every_strategy, sample

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</title></text><script>alert(1)</script><img src=x onerror=alert(2)>&\"'\x00\x1b[31m\ud800\u202e\n--> ]]>"
YES = Requirement("says yes", check=lambda text: text == "yes")


def parsed(svg):
    """Parse a picture as XML, which refuses what is not well-formed."""
    return ET.fromstring(svg)  # noqa: S314 - made by ourselves


def bars(svg):
    """Return the class and the first rectangle of each attempt."""
    groups = [group for group in parsed(svg).iter(f"{SVG}g") if group.find(f"{SVG}title") is not None]
    return [(group.get("class"), group.find(f"{SVG}rect"), group.find(f"{SVG}title").text) for group in groups]


def eventful(request):
    if request.subsample == 0:
        return After(0.5, Generation("yes" if request.attempt else "no", Usage(5, 3)))
    if request.subsample == 1:
        return After(0.2, RateLimited("busy")) if not request.attempt else After(9, "yes")
    return After(9, "yes")


@pytest.fixture
def result(run):
    return run(sample, MultiTurnStrategy(loop_budget=3, concurrency_budget=3), ScriptedBackend(eventful), [YES])


def test_there_is_a_bar_for_each_attempt_with_its_outcome(result):
    """Bars lie in the lane of their subsample, from their start to their end. Losers end with the call."""
    drawn = bars(result.to_svg())
    assert ["invalid", "valid", "errored", "cancelled", "cancelled"] == [kind for kind, _, _ in drawn]
    starts = [float(bar.get("x")) for _, bar, _ in drawn]
    ends = [float(bar.get("x")) + float(bar.get("width")) for _, bar, _ in drawn]
    lanes = [float(bar.get("y")) for _, bar, _ in drawn]
    assert starts[0] == starts[2] == starts[4] < starts[3] < starts[1]
    assert ends[1] == pytest.approx(ends[3]) == pytest.approx(ends[4])
    assert lanes[0] == lanes[1] < lanes[2] == lanes[3] < lanes[4]


def test_the_winner_is_marked(result):
    """By a thick border, by a mark in its label, and in words."""
    drawn = bars(result.to_svg())
    assert ["1.5", "3", "1.5", "1.5", "1.5"] == [bar.get("stroke-width") for _, bar, _ in drawn]
    assert "2 valid ✓ the answer" in result.to_svg()
    assert [False, True, False, False, False] == ["the answer" in tooltip for _, _, tooltip in drawn]


def test_the_picture_is_described_in_words(result):
    """A screen reader reads the title and the description, which the picture refers to."""
    root = parsed(result.to_svg())
    names = root.get("aria-labelledby").split()
    texts = {child.get("id"): child.text for child in root if child.get("id")}
    assert "img" == root.get("role")
    assert "success in 1 s · 5 of 9 attempts · 16 tokens" == texts[names[0]]
    assert (
        "Lanes over time, one for each of 3 subsamples, with a bar for each attempt: "
        "1 valid, 1 invalid, 1 errored, 2 cancelled. The answer is iteration 2, of subsample 0, at 1 s."
    ) == texts[names[1]]


def test_the_picture_stands_alone_and_fits_light_and_dark(result):
    """It refers to nothing outside of itself, and has colours for both."""
    svg = result.to_svg()
    assert "prefers-color-scheme: dark" in svg
    assert 1 == svg.count("http") == svg.count("http://www.w3.org/2000/svg")
    assert "<script" not in svg


def test_two_pictures_in_one_page_do_not_mix(run):
    """Their ids differ, and their styles apply to pictures only."""
    pictures = [run(sample, RejectionSamplingStrategy(), ScriptedBackend(["yes"]), [YES]).to_svg() for _ in "ab"]
    ids = [{element.get("id") for element in parsed(one).iter() if element.get("id")} for one in pictures]
    assert not ids[0] & ids[1]
    rules = parsed(pictures[0]).find(f"{SVG}style").text.replace("@media (prefers-color-scheme: dark){", "")
    assert all(rule.startswith(".sampling-lanes ") for rule in rules.strip("}").split("}") if rule)


@every_strategy
def test_a_result_of_every_strategy_can_be_drawn(run, strategy_class):
    """Attempts of one lane never overlap."""
    result = run(sample, strategy_class(loop_budget=2, concurrency_budget=3), ScriptedBackend(eventful), [YES])
    drawn = bars(result.to_svg())
    assert len(result.attempts) == len(drawn)
    by_lane = {}
    for _, bar, _ in drawn:
        by_lane.setdefault(bar.get("y"), []).append((float(bar.get("x")), float(bar.get("width"))))
    for lane in by_lane.values():
        lane.sort()
        assert all(x + width <= after + 0.5 for (x, width), (after, _) in pairwise(lane))


def test_hostile_texts_are_shown_and_do_nothing(run):
    """In requirements, prompts, answers, errors and ids: no tag comes from a text, and XML can be parsed."""

    def reply(request):
        return After(1, HOSTILE) if request.subsample else RuntimeError(HOSTILE)

    reqs = [Requirement(HOSTILE, check=lambda text: (False, HOSTILE))]
    result = run(sample, RejectionSamplingStrategy(concurrency_budget=2), ScriptedBackend(reply), reqs, HOSTILE)
    result = attrs.evolve(result, sampling_id=HOSTILE, notes=(HOSTILE,), stop_detail=HOSTILE)

    tags = {element.tag.removeprefix(SVG) for element in parsed(result.to_svg()).iter()}
    assert tags <= {"svg", "title", "desc", "style", "defs", "pattern", "line", "marker", "path", "rect", "text", "g"}
    page = result.explain(html=True)
    seen = tags_of(page)
    assert not seen & {"script", "img"}
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert all(character.isprintable() or character == "\n" for character in page)


def tags_of(page):
    """Return the tags of a page, which must all be closed."""
    seen, opened = set(), []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attrs):
            seen.add(tag)
            assert not any(name.startswith("on") for name, _ in attrs)
            opened.append(tag)

        def handle_startendtag(self, tag, attrs):
            seen.add(tag)

        def handle_endtag(self, tag):
            assert tag == opened.pop()

    reader = Reader()
    reader.feed(page)
    reader.close()
    assert not opened
    return seen


def test_the_page_has_what_explain_has(result):
    """Notebooks show the same fragment."""
    page = result.explain(html=True)
    assert page == result._repr_html_()
    assert page.count("<details") == len(result.attempts) == 5
    for text in ("says yes", "← the answer", "RateLimited: busy", "<svg", "8 tokens"):
        assert text in page
    tags_of(page)


def test_a_call_without_time_is_drawn_in_order(run):
    """A scripted backend answers at once: bars of the same width show the order."""
    result = run(sample, MultiTurnStrategy(loop_budget=4), ScriptedBackend(["no"] * 4), [YES])
    widths = {bar.get("width") for _, bar, _ in bars(result.to_svg())}
    assert 1 == len(widths)
    assert "no valid answer (exhausted) in 0 s" in result.to_svg()


def test_a_call_of_thousands_of_attempts_stays_readable(run):
    """Lanes get thin, then some are left out, and the picture says how many."""
    strategy = RejectionSamplingStrategy(loop_budget=2, concurrency_budget=150)
    result = run(sample, strategy, ScriptedBackend(lambda _: After(1, "no")), [YES])
    svg = result.to_svg()
    assert 200 == len(bars(svg))
    assert "50 more subsamples are not drawn." in svg
    assert "100 more attempts" in result.explain(html=True)


@pytest.mark.parametrize(("depth", "breadth"), [(1, 150), (60, 1)])
def test_the_answer_is_drawn_and_marked_however_many_attempts_there_are(run, monkeypatch, depth, breadth):
    """It may be in a lane or a bar that would be left out, and its mark is beside a narrow bar."""
    monkeypatch.setattr(_lanes, "_MAX_BARS", 50)
    strategy = RejectionSamplingStrategy(loop_budget=depth, concurrency_budget=breadth)
    last = depth * breadth

    def reply(request):
        return After(2 if request.iteration == last else 1, "yes" if request.iteration == last else "no")

    svg = run(sample, strategy, ScriptedBackend(reply), [YES]).to_svg()
    drawn = bars(svg)
    assert f"iteration {last} " in svg
    assert 1 == svg.count("valid, the answer")
    assert 1 == svg.count("✓</text>")
    assert all(float(bar.get("x")) + float(bar.get("width")) <= 733 for _, bar, _ in drawn)


def test_texts_from_right_to_left_stay_where_they_belong(run):
    """Each text has its own direction, and does not turn what is beside it. Persian and emoji keep their joiners."""
    persian, family = "می\u200cخواهم.", "\N{MAN}\u200d\N{GIRL}"
    reqs = [Requirement(persian, check=lambda text: (False, f"{family}\u202e"))]
    page = run(sample, RejectionSamplingStrategy(), ScriptedBackend([persian]), reqs).explain(html=True)
    assert f'<pre dir="auto">{persian}</pre>' in page
    assert f"<bdi>{persian}</bdi>: <bdi>{family}\\u202e</bdi>" in page


def test_a_result_without_attempts_can_be_drawn():
    """A budget may leave no room for any."""
    nothing = SamplingResult(
        success=False, best=None, slices=(), attempts=(), errors=(), usage=Usage(), stop_reason="budget",
        sampling_id="", elapsed_s=0.0, max_attempts=3,
    )  # fmt: skip
    assert [] == bars(nothing.to_svg())
    assert "There is no answer." in nothing.explain(html=True)


def test_the_picture_has_no_text_of_prompts_and_answers(run):
    """It can be shown where the conversation must not be."""
    result = run(sample, RejectionSamplingStrategy(), ScriptedBackend(["Xanthippe"]), [YES], Action("Xanthippe?"))
    assert "Xanthippe" not in result.to_svg()
    assert "Xanthippe" in result.explain(html=True)
