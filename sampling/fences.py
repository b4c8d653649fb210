"""Models like to put code and JSON between fences; what reads them looks inside."""

__all__ = ["unfenced"]

_MARKS = ("```", "~~~")


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
