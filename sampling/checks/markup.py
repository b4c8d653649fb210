"""Requirements for the structure of Markdown."""

import re
from collections.abc import Callable, Sequence

from sampling._arguments import check_bool, check_int, check_items, check_str
from sampling.requirements import Requirement, Verdict

__all__ = ["markdown"]

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*)")
_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+\S")
_DELIMITER_ROW = re.compile(r" {0,3}\|?(?:[ \t]*:?-+:?[ \t]*\|)+(?:[ \t]*:?-+:?)?[ \t]*")
_LONGEST_LINE = 2_000
"""Longer lines are no headings, items or tables, and could take long to match."""


def markdown(
    *,
    headings: Sequence[str] = (),
    min_items: int = 0,
    max_items: int | None = None,
    table: bool = False,
    code_block: bool = False,
) -> Requirement:
    """
    Require the structure of a Markdown text.

    Code blocks must be closed, and what is inside of them is neither a heading, an item nor a table.

    Args:
        headings: The texts of headings that it must have, in this order. Case and level do not matter.

        min_items: The minimum number of list items.

        max_items: The maximum number of list items.

        table: Require a table.

        code_block: Require a code block.
    """
    wanted = [check_str("an item of headings", one, empty=False) for one in check_items("headings", headings, "a list")]
    least = check_int("min_items", min_items, least=0)
    most = None if max_items is None else check_int("max_items", max_items, least=least)
    found_in: list[Callable[[_Structure], str | None]] = [_unclosed]
    if wanted:
        found_in.append(lambda text: _missing_heading(wanted, text.headings))
    if least or most is not None:
        found_in.append(lambda text: _wrong_items(least, most, text.items))
    if check_bool("table", table):
        found_in.append(lambda text: None if text.tables else "it has no table: add one, with a row of dashes")
    if check_bool("code_block", code_block):
        found_in.append(
            lambda text: None if text.code_blocks else "it has no code block: put the code between ``` lines"
        )

    def has_structure(text: str) -> Verdict:
        structure = _Structure(text)
        problems = [problem for look in found_in if (problem := look(structure)) is not None]
        return not problems, "; ".join(problems) or None

    return Requirement(_description(wanted, least, most, table=table, code_block=code_block), has_structure)


def _description(wanted: Sequence[str], least: int, most: int | None, *, table: bool, code_block: bool) -> str:
    parts = [
        f"the headings {', '.join(wanted)}" if wanted else "",
        f"at least {least} list items" if least else "",
        f"at most {most} list items" if most is not None else "",
        "a table" if table else "",
        "a code block" if code_block else "",
    ]
    named = [part for part in parts if part]
    return f"is Markdown with {', '.join(named)}" if named else "is Markdown with closed code blocks"


class _Structure:
    """The headings, items, tables and code blocks of a text."""

    def __init__(self, text: str) -> None:
        self.headings: list[str] = []
        self.items = self.tables = self.code_blocks = 0
        self.open_fence: str | None = None
        for line in text.splitlines():
            self._read(line[:_LONGEST_LINE])

    def _read(self, line: str) -> None:
        fence = _FENCE.match(line)
        if self.open_fence is not None:
            if fence is not None and fence[1].startswith(self.open_fence) and not line[fence.end() :].strip():
                self.open_fence = None
        elif fence is not None:
            self.open_fence = fence[1]
            self.code_blocks += 1
        elif heading := _HEADING.fullmatch(line):
            self.headings.append(heading[1].rstrip(" \t#").strip(" *_").casefold())
        elif _DELIMITER_ROW.fullmatch(line):
            self.tables += 1
        elif _ITEM.match(line):
            self.items += 1


def _unclosed(text: _Structure) -> str | None:
    return None if text.open_fence is None else f"a code block is not closed: end it with a line of {text.open_fence}"


def _missing_heading(wanted: Sequence[str], headings: Sequence[str]) -> str | None:
    rest = iter(headings)
    for heading in wanted:
        if heading.strip().casefold() not in rest:
            return f"the heading {heading!r} is missing, or not in its place: use the headings {', '.join(wanted)}"
    return None


def _wrong_items(least: int, most: int | None, items: int) -> str | None:
    if items < least:
        return f"it has {items} list items instead of at least {least}: add more"
    return (
        f"it has {items} list items instead of at most {most}: remove some"
        if most is not None and items > most
        else None
    )
