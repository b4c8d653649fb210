"""Text helpers: estimate tokens, quote, align columns, strip code fences."""

import re
from collections.abc import Sequence

__all__ = ["CHARS_PER_TOKEN", "aligned", "estimate_tokens", "quoted", "unfenced"]

CHARS_PER_TOKEN = 4
"""A rough average for English text and common tokenizers."""

# A fence that opens a block: at the start of a line, or after a sentence if nothing but a language follows.
# A longer fence may contain shorter ones, so all of its characters count. Possessive: no input can cause backtracking.
_OPENING = re.compile(r"(?:\s*+|[^`\n]*+(?=`{3,}+[\w+.-]*+\s*+$))(`{3,}+|~{3,}+)")


def estimate_tokens(chars: int) -> int:
    """Estimate the tokens in a text of this length, rounded down."""
    return chars // CHARS_PER_TOKEN


def quoted(text: str, limit: int) -> str:
    """
    Quote untrusted text on one line, truncated at `limit`.

    Control characters are escaped, so that the text can't change the terminal or fake a log line.
    """
    # Cut first: escaping a long text would take time for nothing.
    cut = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return f'"{_printable(cut)}"'


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """
    Format rows as lines of aligned columns.

    The first column is aligned to the left, all others to the right. Control characters are escaped.
    """
    rows = [[_printable(cell) for cell in row] for row in rows]
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
    Return the content of the first fenced block, or the whole text without one.

    Text before and after the block is dropped. An unclosed block extends to the end.
    """
    lines = text.split("\n")
    found = ((number, match[1]) for number, line in enumerate(lines) if (match := _OPENING.match(line)))
    opening, fence = next(found, (None, ""))
    if opening is None:
        return text.strip()
    closing = next((n for n in range(opening + 1, len(lines)) if _closes_fence(lines[n], fence)), len(lines))
    return "\n".join(lines[opening + 1 : closing]).strip("\r\n")


def _closes_fence(line: str, fence: str) -> bool:
    end = line.strip()
    return end.startswith(fence) and not end.strip(fence[0])
