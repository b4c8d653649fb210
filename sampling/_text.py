"""Small operations on text: estimate its tokens, quote it for people, align it, take it out of code fences."""

from collections.abc import Sequence

__all__ = ["CHARS_PER_TOKEN", "aligned", "estimate_tokens", "quoted", "unfenced"]

CHARS_PER_TOKEN = 4
"""A rough average for English text and common tokenizers."""

_MARKS = ("```", "~~~")


def estimate_tokens(chars: int) -> int:
    """Estimate the tokens in a text of this length, rounded down."""
    return chars // CHARS_PER_TOKEN


def quoted(text: str, limit: int) -> str:
    """Quote text from a model for a human: one line, cut at `limit`, and nothing in it that steers a terminal."""
    cut = text if len(text) <= limit else f"{text[: limit - 1]}…"
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in cut)
    return f'"{safe}"'


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines: the first column to the left, all others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def unfenced(text: str) -> str:
    """
    Return what stands in the first fenced block of a text, or all of it if there is none.

    Whatever is said before and after the block is left out. A block that was never closed goes to the end.
    """
    lines = text.split("\n")
    opening = next((number for number, line in enumerate(lines) if line.lstrip().startswith(_MARKS)), None)
    if opening is None:
        return text.strip()
    mark = _mark_of(lines[opening])
    closing = next((n for n in range(opening + 1, len(lines)) if _closes(lines[n], mark)), len(lines))
    return "\n".join(lines[opening + 1 : closing]).strip("\r\n")


def _mark_of(line: str) -> str:
    """Return the run of backticks or tildes that a fence begins with: more than three may fence a fence."""
    start = line.lstrip()
    return start[: len(start) - len(start.lstrip(start[0]))]


def _closes(line: str, mark: str) -> bool:
    end = line.strip()
    return end.startswith(mark) and not end.strip(mark[0])
