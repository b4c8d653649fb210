"""Build HTML and SVG. All text is escaped, except `Markup`."""

import re
from html import escape

__all__ = ["Markup", "element", "joined", "raw"]

# Control characters are invalid in HTML, and bidirectional overrides could make text look different from what it is.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_VOID = frozenset({"meta", "circle", "line", "path", "polyline", "rect"})


class Markup(str):
    """Text that is markup already and is not escaped again."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: str | float | None) -> Markup:
    """
    Write one element with its children.

    A trailing `_` of an attribute's name is dropped (`class_`), another becomes `-` (`text_anchor`);
    None leaves the attribute out. Numbers are written with two decimals at most.
    """
    pairs = "".join(
        f' {key.removesuffix("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID and not children:
        return Markup(f"<{name}{pairs}/>")
    return Markup(f"<{name}{pairs}>{joined(*children)}</{name}>")


def joined(*children: str) -> Markup:
    """Join pieces, and escape those that are plain text."""
    return Markup("".join(child if isinstance(child, Markup) else _escaped(child) for child in children))


def raw(text: str) -> Markup:
    """Mark trusted text as markup."""
    return Markup(text)


def _value(value: str | float) -> str:
    return _escaped(value) if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


def _escaped(text: str) -> str:
    return escape(_UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text), quote=True)
