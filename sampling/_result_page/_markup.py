"""Put untrusted text into XML and HTML."""

from html import escape

__all__ = ["escaped", "escaped_lines"]

_JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
"""Persian words and emoji are written with them. They can't change what is around them."""

_KEPT = frozenset(f"\n{_JOINERS}")


def escaped(text: str) -> str:
    """Return a text for XML or HTML. Control characters become visible, because XML allows none of them."""
    return escape("".join(c if c.isprintable() or c in _KEPT else _code(c) for c in text))


def escaped_lines(text: str, limit: int) -> str:
    """Return the beginning of a long text for HTML, with its lines."""
    cut = text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters)"
    return escaped(cut.replace("\r\n", "\n").replace("\t", "    "))


def _code(character: str) -> str:
    return character.encode("unicode_escape", "backslashreplace").decode()
