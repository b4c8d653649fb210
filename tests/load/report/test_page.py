"""The page of a report, looked at in a real browser."""

import re
from pathlib import Path

import attrs
import pytest

from sampling._result_page.report.chart import ticks
from sampling._result_page.report.markup import element, raw
from sampling.load import OpenLoop, compare, render_html
from sampling.load.report._page.pictures import find_knee
from tests.load.browser import CHROMIUM, NOT_INSTALLED, Browser, chromium
from tests.load.reports import EVIL, capacity_answer, closed_report, evil_report, load_report

REPORTS = {
    "load": load_report,
    "failing": lambda: load_report(failures=0.1),
    "overloaded": lambda: load_report(OpenLoop(rate=20, duration_s=30, max_in_flight=8)),
    "users": closed_report,
    "capacity": capacity_answer,
    "hostile": evil_report,
    "nothing sent": lambda: load_report(OpenLoop(rate=1, requests=0)),
    "everything failed": lambda: load_report(failures=1.0),
}

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason=NOT_INSTALLED)


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {}
    for name, report in REPORTS.items():
        paths[name] = folder / f"{name.replace(' ', '-')}.html"
        paths[name].write_text(render_html(report()), encoding="utf-8")
    paths["comparison"] = folder / "comparison.html"
    compared = compare(load_report(), load_report(failures=0.1))
    paths["comparison"].write_text(render_html(load_report(failures=0.1), comparison=compared), encoding="utf-8")
    return paths


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 768, 1280])
@pytest.mark.parametrize("name", [*REPORTS, "comparison"])
def test_no_page_scrolls_sideways_and_each_figure_shows_one_picture(
    browser: Browser, pages: dict[str, Path], name: str, width: int, scheme: str
):
    """The page fits a phone and a desktop, and no text of a picture is below 11 px."""
    browser.open(pages[name], width=width, scheme=scheme)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    shown = "[...document.querySelectorAll('figure')].map(f => [...f.querySelectorAll('svg')]"
    shown += ".filter(s => getComputedStyle(s).display != 'none').length)"
    assert set(browser.evaluate(shown)) <= {1}
    smallest = "Math.min(99, ...[...document.querySelectorAll('svg')].filter(s => s.clientWidth)"
    smallest += ".map(s => 13 * s.clientWidth / s.viewBox.baseVal.width))"
    assert browser.evaluate(smallest) >= 10


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["overloaded", "capacity", "hostile"])
def test_text_stands_out_from_what_is_behind_it(browser: Browser, pages: dict[str, Path], name: str, scheme: str):
    """WCAG AA: a contrast of 4.5 for every text, in light and in dark."""
    browser.open(pages[name], width=1280, scheme=scheme)
    found = browser.evaluate(_CONTRASTS)
    assert len(found) > 30
    assert [text for ratio, text in found if ratio < 4.5] == []


_CONTRASTS = """
(() => {
  const light = c => { const [r, g, b] = c.match(/[0-9.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    if (c != 'rgba(0, 0, 0, 0)') return c } return 'rgb(255, 255, 255)' };
  const texts = [...document.querySelectorAll('h1,h2,h3,p,li,dt,dd,small,figcaption,summary,th,td,svg text')];
  return texts.filter(e => e.textContent.trim() && e.getClientRects().length).map(e => {
    const own = getComputedStyle(e), colour = e.closest('svg') ? own.fill : own.color;
    const [a, b] = [light(colour), light(behind(e))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.textContent.slice(0, 40)] }) })()
"""


@needs_browser
def test_a_page_loads_nothing_and_runs_nothing(browser: Browser, pages: dict[str, Path], tmp_path: Path):
    """The page is one file without external parts, and its policy refuses injected scripts."""
    browser.requested.clear()
    browser.complaints.clear()
    browser.open(pages["capacity"], width=1280)
    browser.evaluate("1")
    assert browser.requested == [pages["capacity"].as_uri()]
    assert browser.complaints == []
    tampered = tmp_path / "tampered.html"
    injected = "<script>document.title='owned'</script><img src='http://127.0.0.1:9/x.png'></main>"
    tampered.write_text(render_html(load_report()).replace("</main>", injected), encoding="utf-8")
    browser.open(tampered, width=1280)
    assert browser.evaluate("document.title") != "owned"
    assert len([text for text in browser.complaints if "Content Security Policy" in text]) == 2


@needs_browser
def test_what_a_run_says_is_shown_and_never_obeyed(browser: Browser, pages: dict[str, Path]):
    """Names of operations, types of errors and their messages are text, whatever is in them."""
    browser.open(pages["hostile"], width=1280)
    assert browser.evaluate("document.scripts.length") == 0
    assert browser.evaluate("document.title") == "10 requests per second"
    assert "<script>document.title='owned'</script>" in browser.evaluate("document.body.textContent")
    assert "\u202e" not in browser.evaluate("document.body.textContent")
    assert "<script" not in pages["hostile"].read_text("utf-8")


@pytest.mark.parametrize("name", REPORTS)
def test_every_picture_has_a_title_a_description_and_its_numbers(name: str):
    """Every picture has a description and a table."""
    page = render_html(REPORTS[name]())
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    for picture in pictures:
        title, says = re.search(r'aria-labelledby="(\S+) (\S+)"', picture).groups()
        assert f'<title id="{title}">' in picture
        assert f'<desc id="{says}">' in picture
        assert 'role="img"' in picture
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert page.count("<figure") == len(re.findall(r"<figure.*?<table.*?</figure>", page, re.DOTALL))
    assert bool(pictures) == (name != "nothing sent")


def test_a_page_is_the_same_for_the_same_report():
    """No clock, no chance: it can be kept under version control."""
    assert render_html(load_report()) == render_html(load_report())


def test_the_page_of_a_search_says_what_holds_what_breaks_and_where_the_knee_is():
    """R5: the answer is the headline, and the picture has its line."""
    answer = capacity_answer()
    page = render_html(answer)
    assert f"<h1>Holds {answer.max_rate:g} requests per second</h1>" in page
    assert answer.next_limit.replace(">", "&gt;") in page
    for name in ("p95 ≤ 2s", "p99 ≤ 5s", f"holds {answer.max_rate:g}"):
        assert f">{name}" in page, name


def test_the_numbers_of_a_page_are_those_of_the_report():
    """One row a step, as in the CSV."""
    answer = capacity_answer()
    rows = re.findall(r"<tr><td>(.*?)</tr>", render_html(answer), re.DOTALL)
    verdicts = [re.sub(r"<[^>]+>", " ", row).split() for row in rows[: len(answer.steps)]]
    assert [f"{step.target_rate:g}" for step in answer.steps] == [row[0] for row in verdicts]
    assert [step.verdict for step in answer.steps] == [row[2] for row in verdicts]


# Pieces.


def test_text_becomes_no_markup_and_markup_is_not_escaped_twice():
    """Escaping is by construction: there is no way to forget it."""
    inner = element("b", EVIL)
    assert element("p", inner, "<i>", title='"') == (
        '<p title="&quot;"><b>&lt;script&gt;document.title=&#x27;owned&#x27;&lt;/script&gt;&amp;&quot;&#x27;\ufffd</b>'
        "&lt;i&gt;</p>"
    )
    assert raw("<br>") == "<br>"


@pytest.mark.parametrize(
    ("low", "high", "most", "log", "expected"),
    [
        (0, 10, 5, False, [0, 2, 4, 6, 8, 10]),
        (0, 1, 5, False, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.03, 0.04, 4, False, [0.03, 0.035, 0.04]),
        (0.9, 60, 8, True, [1, 2, 5, 10, 20, 50]),
        (0.001, 1000, 7, True, [0.001, 0.01, 0.1, 1, 10, 100, 1000]),
    ],
)
def test_marks_are_round_numbers(low, high, most, log, expected):
    """1, 2 and 5 times a power of ten, about as many as fit."""
    assert expected == pytest.approx(ticks(low, high, most=most, log=log))


@pytest.mark.parametrize(
    ("points", "knee"),
    [
        ([(10, 1), (20, 1.1), (40, 1.3), (50, 9)], 40),
        ([(10, 1), (20, 2), (30, 3), (40, 4)], None),
        ([(10, 1), (20, 1), (30, 1), (40, 1.1)], None),
        ([(10, 1), (20, 9)], None),
        ([], None),
    ],
)
def test_the_knee_is_where_the_curve_turns_up(points, knee):
    """A straight line has none, and neither has a curve that does not rise."""
    assert knee == find_knee(points)


def test_a_comparison_is_on_the_page():
    """R14: with its notes and each figure before and after, escaped like everything else."""
    compared = compare(load_report(), load_report(failures=0.1))
    page = render_html(load_report(failures=0.1), comparison=compared)
    assert "Compared with the earlier report" in page
    assert str(compared) in page
    assert page.count(">worse</td>") == len(compared.worse) > 0
    assert "Compared" not in render_html(load_report())


def test_limits_on_tokens_are_not_drawn_among_latencies():
    """R15: the chart of a search shows latencies, so that only their limits belong on it."""
    answer = capacity_answer()
    page = render_html(attrs.evolve(answer, slo=attrs.evolve(answer.slo, p95_s=2.0, tpot_p95_s=0.05)))
    assert "p95 ≤ 2s" in page
    assert "tpot_p95 ≤" not in page
