"""Assemble a page of a report: a headline, notes, tiles, charts and tables."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from itertools import count

import attrs

from sampling._result_page.report.chart import Chart, Size, draw
from sampling._result_page.report.markup import Markup, element, joined, raw
from sampling._result_page.report.style import STYLE

__all__ = ["Picture", "figures", "html_document", "notes_list", "table", "tiles"]

_NARROW, _MIDDLE, _WIDE = Size(350, 270), Size(560, 300), Size(1120, 400)
_TONES = {"PASS": "good", "TRIP": "bad", "INCONCLUSIVE": "limit", "better": "good", "worse": "bad"}
_WORDS = frozenset({"examples", "item", "loop", "population", "requirement", "value", "why", "what"})
"""Columns with text instead of numbers."""


@attrs.frozen
class Picture:
    """A chart with a caption and a table."""

    chart: Chart
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    full: bool = False
    """True if it takes the full width of the page."""


def html_document(title: str, kind: str, *content: Markup, refresh_s: int | None = None) -> str:
    """Return an HTML document with the style sheet. It reloads itself every `refresh_s` seconds, if given."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        *([] if refresh_s is None else [element("meta", http_equiv="refresh", content=str(refresh_s))]),
        element("title", title),
        raw(f"<style>{STYLE}</style>"),
    )
    header = element("header", element("p", f"sampling {kind}", class_="kind"), element("h1", title), *content[:1])
    body = element("body", element("main", header, *content[1:]))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def notes_list(notes: Sequence[str]) -> Markup:
    """Return the notes as a list, or nothing without any."""
    return element("ul", *(element("li", note) for note in notes), class_="notes") if notes else raw("")


def tiles(given: Iterable[tuple[str, str, str]]) -> Markup:
    """Return the main numbers, each with its name and a remark."""
    return element(
        "dl",
        *(
            element("div", element("dt", name), element("dd", value, element("small", more)))
            for name, value, more in given
        ),
        class_="tiles",
    )


def figures(pictures: Sequence[Picture], place: str, *, shown: bool = False, level: int = 2) -> Markup:
    """Return pictures side by side. `shown` expands their tables, and `level` is that of their headings."""
    numbers = count(1)
    drawn = [_figure(picture, f"{place}-{next(numbers)}", shown=shown, level=level) for picture in pictures]
    return element("div", *drawn, class_="pictures") if drawn else raw("")


def _figure(picture: Picture, number: str, *, shown: bool, level: int) -> Markup:
    """
    Draw a picture in all sizes.

    The style sheet shows the one that fits the screen.
    """
    sizes = [("narrow", _NARROW), ("middle", _MIDDLE), *([("wide", _WIDE)] if picture.full else [])]
    drawings = [draw(picture.chart, size, class_=name, number=f"{number}-{name}") for name, size in sizes]
    numbers = table(picture.columns, picture.rows, picture.chart.title)
    if not shown:
        numbers = element("details", element("summary", "The numbers"), numbers)
    return element(
        "figure",
        element(f"h{level}", picture.chart.title),
        *drawings,
        element("figcaption", picture.caption),
        numbers if picture.rows else raw(""),
        class_="full" if picture.full else None,
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], name: str) -> Markup:
    """Return a table that scrolls by itself on a narrow screen."""
    head = element("tr", *(element("th", column, scope="col", class_=_kind(column)) for column in columns))
    body = [element("tr", *(_cell(column, value) for column, value in zip(columns, row, strict=True))) for row in rows]
    content = element("table", element("thead", head), joined(element("tbody", *body)))
    # Accessibility: a scrolling region must be focusable, and a focusable one must have a label.
    return element("div", content, class_="scroll", tabindex=0, role="region", aria_label=f"{name}: numbers")


def _cell(column: str, value: str) -> Markup:
    return element("td", value, class_=_TONES.get(value) or _kind(column))


def _kind(column: str) -> str | None:
    return "words" if column in _WORDS else None
