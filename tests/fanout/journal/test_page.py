"""The page about the run in a journal, looked at in a real browser."""

import re
import shutil
import sqlite3
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import anyio
import attrs
import pytest
from anyio.lowlevel import checkpoint

from sampling import Budget, FatalError, Generation, MultiTurnStrategy, Requirement, Usage, fan_out, open_fan_out
from sampling.errors import ConnectFailed, JournalDamaged, ServerError
from sampling.fanout.journal import Journal, export
from sampling.fanout.journal._page import read_findings, render_findings
from sampling.fanout.journal._page.amounts import clock_time, long_time, short_time
from sampling.fanout.journal._page.timeline import Durations, Timeline
from sampling.fanout.journal._pauses import Pause
from tests.faults.journals import InlineJournal
from tests.load.browser import CHROMIUM, NOT_INSTALLED, Browser, chromium

EVIL = "<script>document.title='owned'</script>&\"'\u202e\x00"
TWICE = MultiTurnStrategy(loop_budget=2)
SAYS_YES = Requirement(f"says yes {EVIL}", check=lambda text: (text.startswith("yes"), f"it says no {EVIL}"))

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason=NOT_INSTALLED)


async def answer(request):
    """Answer, refuse, raise or be slow, as the question says."""
    question = request.messages[0].text
    await anyio.sleep(20 if "slow" in question else 1)
    if "raise" in question:
        raise FatalError(f"broken {EVIL}")
    good = "wrong" not in question and ("mended" not in question or request.attempt)
    return Generation(f"{'yes' if good else 'no'} {EVIL}", Usage(10, 5, 0.25))


def questions(*kinds):
    return [(f"{kind}-{number} {EVIL[:30]}", f"{kind} question") for number, kind in enumerate(kinds)]


def run_all(run, path, items, backend=answer, **settings):
    """Run to the end in virtual time, and return the page."""
    settings = {"on_error": "continue", "max_concurrency": 4, **settings}
    run(lambda: fan_out(TWICE, items, None, backend, [SAYS_YES], journal=InlineJournal(path), **settings))
    return Journal(path).to_html()


MIXED = questions(*["good"] * 12, "mended", "wrong", "raise", "slow")


@pytest.fixture
def pages(run, tmp_path):
    return {
        "mixed": run_all(run, tmp_path / "mixed.db", MIXED),
        "all failed": run_all(run, tmp_path / "failed.db", questions(*["wrong"] * 30)),
        "all errored": run_all(run, tmp_path / "errored.db", questions(*["raise"] * 30)),
        "no items": run_all(run, tmp_path / "none.db", []),
        "long keys": run_all(run, tmp_path / "keys.db", [("k" * 300 + str(n), "wrong") for n in range(9)]),
        "long": run_all(run, tmp_path / "long.db", [("k" * 9_000, "good " + "q" * 9_000)], _endless),
    }


async def _endless(_request):
    await anyio.sleep(1)
    return f"{'n' * 50_000} {EVIL}"


@needs_browser
def test_a_page_fits_every_screen_and_obeys_nothing_that_a_run_says(pages, tmp_path):
    """No page scrolls sideways, in light or dark, and what prompts, answers and errors contain is text."""
    with chromium() as browser:
        for name, page in pages.items():
            path = tmp_path / "page.html"
            path.write_text(page, encoding="utf-8")
            for width, scheme in ((320, "dark"), (390, "light"), (1280, "light"), (1280, "dark")):
                _check_screen(browser, path, name, width, scheme)


def _check_screen(browser: Browser, path: Path, name: str, width: int, scheme: str):
    browser.open(path, width=width, scheme=scheme)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width, name
    # A long description is wrapped, so that the count beside it needs no scrolling.
    counts = "[...document.querySelectorAll('td.words:first-child + td')]"
    assert browser.evaluate(f"Math.max(0, ...{counts}.map(cell => cell.getBoundingClientRect().right))") <= width, name
    # On a wide screen all columns are in sight, long keys or not.
    cells = "[...document.querySelectorAll('h2 ~ .scroll td')]"
    if width > _PHONE:
        assert browser.evaluate(f"Math.max(0, ...{cells}.map(cell => cell.getBoundingClientRect().right))") <= width, (
            name
        )
    assert browser.evaluate("document.scripts.length") == 0
    assert browser.evaluate("document.title") != "owned"
    assert browser.complaints == []
    assert browser.evaluate(_BROKEN_LINKS) == []
    shown = "[...document.querySelectorAll('figure')].map(f => [...f.querySelectorAll('svg')]"
    shown += ".filter(s => getComputedStyle(s).display != 'none').length)"
    assert set(browser.evaluate(shown)) <= {1}
    assert browser.evaluate("[...document.querySelectorAll('.line')].filter(e => " + _INVISIBLE + ").length") == 0


_PHONE = 390
_INVISIBLE = "getComputedStyle(e).stroke == 'none'"
_BROKEN_LINKS = (
    "[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))"
    ".filter(h => !document.getElementById(h.slice(1)))"
)


def test_a_page_says_how_a_run_went(pages):
    """Outcomes, tokens, cost, failures by requirement and by error, and the slowest item, with their attempts."""
    page = pages["mixed"]
    assert "<h1>14 of 16 items have a valid answer</h1>" in page
    assert "The run is complete" in page
    text = _text(page)
    assert "tokens 255 170 in, 85 out" in text
    assert "cost 4.25 0.304 per valid answer" in text
    assert re.search(r"says yes \S+ 1 3 wrong-13 .* it says no", text)
    assert re.search(r"FatalError 1 1 raise-14 .* broken", text)
    assert re.search(r"Slowest items item time status attempts slow-15 \S+ 20 s succeeded 1", text)
    assert 'href="#item-13"' in page
    assert 'id="item-13"' in page
    assert text.count("Attempt 1: invalid") == 2  # the wrong item, and the mended one as one of the slowest


def test_an_item_that_raised_shows_its_attempts(run, tmp_path):
    """The slowest items count the attempts of a call that raised, as the export does, though its record has none."""

    async def broken(_request):
        await anyio.sleep(1)
        raise ServerError("broken")

    page = run_all(run, tmp_path / "run.db", [("a", "good")], broken, outage_grace_s=0)
    assert re.search(r"Slowest items item time status attempts a 2 s errored 2", _text(page))


def test_a_page_of_nothing_says_so(pages):
    """A run over no items, one in which all failed, and one in which all raised have pages, too."""
    assert "<h1>There were no items</h1>" in pages["no items"]
    assert "<svg" not in pages["no items"]
    assert "<h1>0 of 30 items have a valid answer</h1>" in pages["all failed"]
    assert "<h1>0 of 30 items have a valid answer</h1>" in pages["all errored"]
    assert re.search(r"FatalError 30 30 raise-0", _text(pages["all errored"]))


def test_text_of_a_run_is_escaped_and_cut(pages):
    """An answer of 50,000 characters is cut, and nothing on a page begins a script."""
    assert len(pages["long"]) < 40_000
    for page in pages.values():
        assert "<script" not in page
        assert "\u202e" not in page


def test_a_page_of_many_items_is_no_larger(run, tmp_path):
    """F12: the size does not depend on the number of items. That of the charts depends on how long a run took."""
    kinds = ["good", "wrong", "raise", "good", "mended"]
    few = run_all(run, tmp_path / "few.db", questions(*kinds * 30))
    many = run_all(run, tmp_path / "many.db", questions(*kinds * 300), max_concurrency=64)
    few, many = (re.sub(r"<figure.*?</figure>", "", page, flags=re.DOTALL) for page in (few, many))
    assert 5_000 < len(many) < 1.5 * len(few)


def test_a_page_says_what_interrupted_a_run(run, tmp_path):
    """F18: pauses, stops and resumes are on the page, and so are the items that were in flight."""
    path = tmp_path / "run.db"
    began = []

    async def backend(request):
        if 2.5 < anyio.current_time() - began[0] < 9.5:
            raise ConnectFailed("refused")
        return await answer(request)

    async def stop_early():
        began.append(anyio.current_time())
        journal = InlineJournal(path)
        async with open_fan_out(
            TWICE, MIXED, None, backend, [SAYS_YES], journal=journal, max_concurrency=2
        ) as outcomes:
            async for outcome in outcomes:
                if outcome.index == 9:
                    break

    run(stop_early)
    assert "The run was stopped before its end" in Journal(path).to_html()
    page = run_all(run, path, MIXED)
    text = _text(page)
    assert re.search(r"waited for it once", text)
    assert re.search(r"pause of process 1 \S+ \S+ ConnectFailed, until the backend answered", text)
    assert re.search(r"process 1 .* stopped .* process 2 .* completed", text)


def test_a_pause_without_an_end_has_no_length(run, tmp_path):
    """F18: a page that is made during a pause, or after a kill in one, says since when the run waits."""
    path = tmp_path / "run.db"
    seen = []

    async def backend(request):
        if "slow" not in request.messages[-1].text or len(seen) > 4:
            return await answer(request)
        seen.append(Journal(path).to_html())
        raise ConnectFailed("refused")

    page = run_all(run, path, questions("good", "slow"), backend, max_concurrency=1)
    assert re.search(r"waited for it once\. 1 pause, since \S+ \S+ UTC, has no recorded end\.", _text(seen[-1]))
    assert re.search(r"waited for it once, \S+ m?s in all\. ", _text(page))


def test_a_pause_ends_with_its_process(run, tmp_path):
    """F18: a run that is stopped in a pause has waited until then."""
    path = tmp_path / "run.db"

    async def backend(request):
        if "slow" in request.messages[0].text:
            raise ConnectFailed("refused")
        return await answer(request)

    async def stop_in_a_pause():
        items, journal = questions("good", "slow"), InlineJournal(path)
        async with open_fan_out(TWICE, items, None, backend, journal=journal, max_concurrency=1) as outcomes:
            async for _ in outcomes:
                await anyio.sleep(10)
                outcomes.drain()

    run(stop_in_a_pause)
    text = _text(Journal(path).to_html())
    assert re.search(r"waited for it once, \S+ m?s in all\. ", text)
    assert re.search(r"pause of process 1 \S+ \S+ ConnectFailed, until the process ended", text)


def test_a_pause_is_within_the_chart(run, tmp_path):
    """F18: the time axis reaches a pause that began after the last outcome."""
    path = tmp_path / "run.db"
    run_all(run, path, questions("good"))
    findings = read_findings(path)
    findings.pauses.append((1, Pause(1, findings.created_s + 3_600, "ConnectFailed", 1)))
    assert 3_600 == findings.span_s


def test_marks_that_are_left_out_are_counted(run, tmp_path):
    """F18: a chart with lines and bars at its beginning only must not look as if all went well after that."""
    path = tmp_path / "run.db"
    page = run_all(run, path, questions("good"))
    findings = read_findings(path)
    first, moment_s = findings.processes[0], findings.created_s
    findings.processes += [attrs.evolve(first, number=number) for number in range(2, 73)]
    findings.pauses += [(1, Pause(n, moment_s, "ConnectFailed", 1, moment_s, "answered")) for n in range(1_234)]
    text = _text(render_findings(findings))
    assert "Bars are the first 50 of 1,234 pauses, in which the run waited for the backend." in text
    assert "Vertical lines mark where the first 50 of 71 later processes resumed." in text
    assert "the first 50" not in page


def test_the_spending_of_earlier_outcomes_is_on_the_page(run, tmp_path):
    """F18: outcomes that were replaced count as spending, and as work of the process that recorded them."""
    path = tmp_path / "run.db"
    run_all(run, path, questions("wrong", "wrong", "good"))

    async def better(request):
        return await answer(request) if request.attempt == 0 else Generation("yes", Usage(10, 5, 0.25))

    text = _text(run_all(run, path, questions("wrong", "wrong", "good"), better, retry={"failed"}))
    assert "cost 2.25 0.75 per valid answer requests 9 one for each attempt" in text
    assert re.search(r"Cost over time .* 2\.25 Time per item", text), "the curve ends elsewhere"
    assert re.search(r"process 1 \S+ \S+ 3 completed .* process 2 \S+ \S+ 2 completed", text)
    assert "2 earlier outcomes were replaced" in text


def test_attempts_that_were_cut_off_are_no_retries(run, tmp_path):
    """F11: the requests of items without an outcome are those of their attempts, and their cost is on the curve."""
    path = tmp_path / "run.db"

    async def stop_early():
        items = questions("good", "wrong")
        async with open_fan_out(TWICE, items, None, answer, [SAYS_YES], journal=InlineJournal(path)) as outcomes:
            async for _ in outcomes:
                await anyio.sleep(0.5)
                break

    run(stop_early)
    assert "cost 0.5 0.5 per valid answer requests 3 one for each attempt" in _text(Journal(path).to_html())
    assert 0.5 == sum(interval.cost for interval in read_findings(path).timeline.intervals.values())


def test_items_that_are_asked_again_on_purpose_are_not_billed_twice(run, tmp_path):
    """F18: not while they are in flight, either. After a kill they are."""
    path = tmp_path / "run.db"
    run_all(run, path, questions("wrong"))
    seen = []

    async def backend(request):
        seen.append((Journal(path).summary().maybe_billed_twice, Journal(path).to_html()))
        if len(seen) < 3:
            raise KeyboardInterrupt
        return await answer(request)

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run_all(run, path, questions("wrong"), backend, retry={"failed"})
    run_all(run, path, questions("wrong"), backend, retry={"failed"})
    assert [(), (0,), (0,)] == [items for items, _ in seen[:3]]
    assert "billed twice" not in seen[0][1]
    assert "1 item was in flight when a process ended, and may have been billed twice." in seen[1][1]


def test_a_clock_that_was_set_back_is_named(run, tmp_path, monkeypatch):
    """Row 31: the times of such a run can't be compared, and its processes are listed in their order."""
    path = tmp_path / "run.db"
    assert "clock" not in run_all(run, path, questions("wrong"))
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 3_600)
    text = _text(run_all(run, path, questions("wrong"), retry={"failed"}))
    assert "The clock was set back, or processes had different clocks, so times on this page may be wrong." in text
    assert re.search(r"process 1 .* process 2 ", text)


def test_a_failure_that_was_repaired_has_an_example(run, tmp_path):
    """Its attempts are linked, though no item is without an answer."""
    page = run_all(run, tmp_path / "run.db", questions("good", "mended", "mended"))
    failures = re.search(r"Failed requirements.*?</table>", page, re.DOTALL)[0]
    assert ["#item-1", "#item-2"] == re.findall(r'href="(.*?)"', failures)


def test_headings_skip_no_level(pages):
    """A screen reader lists them as an outline."""
    for name, page in pages.items():
        levels = [int(level) for level in re.findall(r"<h(\d)", page)]
        assert all(after <= before + 1 for before, after in pairwise(levels)), name


def test_a_page_says_why_a_run_was_halted(run, tmp_path):
    """F19: by a budget, or by an item."""
    path = tmp_path / "budget.db"
    page = run_all(run, path, questions("good", "good", "good"), budget=Budget(requests=1), max_concurrency=1)
    assert "The run was halted (budget): " in page
    page = run_all(run, path, questions("good", "good", "good"))
    assert re.search(r"process 1 \S+ \S+ 1 halted: budget .* process 2 .* completed", _text(page))
    page = run_all(run, tmp_path / "item.db", questions("good", "wrong", "good"), on_failure="halt", max_concurrency=1)
    assert "The run was halted (item 1): " in page


def test_no_curve_strikes_through_the_name_of_a_process(run, tmp_path):
    """F11: the name of a process that resumed a run is drawn over the curves, with a border that covers them."""
    path = tmp_path / "run.db"
    run_all(run, path, MIXED)
    page = run_all(run, path, MIXED)
    pictures = [one for one in re.findall(r"<svg.*?</svg>", page, re.DOTALL) if "process 2</text>" in one]
    assert pictures
    for picture in pictures:
        assert picture.rindex('class="line ') < picture.index("process 2</text>")


def test_the_page_of_a_run_that_goes_on_changes_nothing(run, tmp_path):
    """F20: it is made while the run writes, and the journal and its folder stay as they are."""
    path = tmp_path / "run.db"
    seen = []

    async def backend(_request):
        await checkpoint()
        return "yes"

    async def look():
        async with open_fan_out(TWICE, MIXED, None, backend, journal=path) as outcomes:
            async for outcome in outcomes:
                if outcome.index == 5:
                    before = sorted(one.name for one in tmp_path.iterdir())
                    seen.append(Journal(path).to_html())
                    assert before == sorted(one.name for one in tmp_path.iterdir())

    anyio.run(look)
    assert "The run is in progress, or its last process was killed" in seen[0]
    finished = path.read_bytes()
    assert Journal(path).to_html() == Journal(path).to_html()
    assert path.read_bytes() == finished
    assert [path] == list(tmp_path.iterdir())


def test_two_outcomes_with_the_same_index_are_no_damage(run, tmp_path):
    """F20: a run that continues after a change, and is stopped, does not know yet which items are gone."""
    path = tmp_path / "run.db"

    async def stopped(items, count):
        journal = InlineJournal(path, on_change="continue")
        async with open_fan_out(TWICE, items, None, after_a_second, journal=journal, max_concurrency=1) as outcomes:
            async for _ in outcomes:
                count -= 1
                if not count:
                    break

    async def after_a_second(_request):
        await anyio.sleep(1)
        return "yes"

    run(stopped, [("a", "1"), ("b", "2"), ("c", "3")], 2)
    run(stopped, [("z", "4"), ("b", "2"), ("c", "3")], 1)
    assert "Slowest items" in _text(Journal(path).to_html())


def test_items_that_are_gone_are_not_open(run, tmp_path):
    """F17: after a change, the number of items is that of the last process that read all of them."""
    path = tmp_path / "run.db"
    run_all(run, path, questions("good", "good", "good"))
    items = questions("good", "good")
    journal = InlineJournal(path, on_change="continue")
    run(lambda: fan_out(TWICE, items, None, answer, [SAYS_YES], journal=journal))
    page = Journal(path).to_html()
    assert "<h1>2 of 2 items have a valid answer</h1>" in page
    assert "errors 0 0.0% of 2 tokens" in _text(page)


def test_a_page_is_an_export(run, tmp_path):
    """F20: `export` writes the page, returns the number of outcomes, and refuses the journal itself."""
    path = tmp_path / "run.db"
    page = run_all(run, path, MIXED)
    assert export(path, tmp_path / "run.html") == 16
    assert (tmp_path / "run.html").read_text("utf-8") == page
    shutil.copyfile(path, tmp_path / "journal.html")
    with pytest.raises(ValueError, match="must not overwrite the journal"):
        export(tmp_path / "journal.html", tmp_path / "journal.html")


def test_a_damaged_record_is_named(run, tmp_path):
    """F14: a record that is not one is `JournalDamaged`, not a page with wrong numbers."""
    path = tmp_path / "run.db"
    run_all(run, path, MIXED)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DROP TRIGGER outcomes_are_final")
        database.execute("UPDATE outcomes SET record = '[]' WHERE item = 3")
    with pytest.raises(JournalDamaged):
        Journal(path).to_html()


# Pieces.


def test_intervals_grow_with_a_run():
    """A run of any length has at most 240 intervals, and none of its outcomes is lost."""
    timeline = Timeline()
    for second in range(100_000):
        timeline.at(float(second)).succeeded += 1
    assert 100_000 == sum(interval.succeeded for interval in timeline.intervals.values())
    assert 120 <= len(timeline.intervals) <= 240


def test_percentiles_are_within_nine_percent():
    """Durations are counted in classes, by nearest rank."""
    durations = Durations()
    for number in range(1, 1_001):
        durations.add(number / 100)
    assert durations.at(50) == pytest.approx(5, rel=0.09)
    assert durations.at(95) == pytest.approx(9.5, rel=0.09)
    assert Durations().at(50) is None


def test_a_percentile_is_not_beyond_the_durations():
    """Ten of the same length have this length as every percentile, however wide the classes are."""
    durations = Durations()
    for _ in range(10):
        durations.add(0.205)
    merged = Durations()
    merged.merge(durations)
    assert pytest.approx(0.205) == durations.at(50) == merged.at(95)


@pytest.mark.parametrize(
    ("seconds", "long", "short"),
    [
        (0, "0 s", "0 s"),
        (0.0123, "12.3 ms", "12.3 ms"),
        (0.9999, "1 s", "1 s"),
        (59.2, "59.2 s", "59.2 s"),
        (61, "1 min 1 s", "61 s"),
        (3_600, "1 h", "3,600 s"),
        (25_920, "7 h 12 min", "25,920 s"),
        (260_000, "3 d 0 h", "260,000 s"),
    ],
)
def test_times_are_written_for_people(seconds, long, short):
    """Two units at most."""
    assert (long, short) == (long_time(seconds), short_time(seconds))


def test_a_time_that_is_none_is_unknown():
    """A damaged time does not prevent a page."""
    assert clock_time(0.0) == "1970-01-01 00:00:00 UTC"
    assert clock_time(1e300) == "an unknown time"


def _text(page: str) -> str:
    """Return the text of a page, with the marks of the hostile text left out."""
    text = re.sub(r"<[^>]+>", " ", page)
    for mark in ("&lt;", "&gt;", "&amp;", "&quot;", "&#x27;", "\ufffd"):
        text = text.replace(mark, "")
    return re.sub(r"\s+", " ", text)
