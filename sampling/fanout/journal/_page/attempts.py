"""Show the attempts of an item from the journal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from sampling._result_page.report.markup import Markup, element
from sampling.fanout.journal._page.amounts import short_time
from sampling.fanout.journal._page.findings import ShownItem
from sampling.fanout.journal._records import describe_requirement, padded_validation

__all__ = ["item_link", "show_item"]

_MAX_ATTEMPTS: Final = 6
_MAX_CHARS: Final = 1_200
_MAX_KEY_CHARS: Final = 60
_MAX_CHECKS: Final = 12


def item_link(item: ShownItem) -> Markup:
    """Return a link to the attempts of an item."""
    return element("a", _cut(item.key, _MAX_KEY_CHARS), href=f"#item-{item.index}")


def show_item(item: ShownItem, descriptions: Sequence[str], known: int) -> Markup:
    """
    Return the attempts of an item, or the error that its call raised.

    `known` is the number of messages that records refer to and do not contain: the context and the item itself.
    """
    return element(
        "section",
        element("h3", _cut(item.key, _MAX_KEY_CHARS)),
        element("p", _headline(item), class_="lead"),
        *_errors(item.record),
        *[
            _attempt(attempt, item.record, descriptions, known)
            for attempt in _first(item.record.get("attempts", ()), item.record.get("best"))
        ],
        *_left_out(item.record),
        id=f"item-{item.index}",
        class_="item",
    )


def _headline(item: ShownItem) -> str:
    elapsed_s = item.record.get("elapsed_s")
    took = f" after {short_time(elapsed_s)}" if isinstance(elapsed_s, int | float) else ""
    reason = item.record.get("stop_reason")
    why = f" ({reason})" if isinstance(reason, str) and item.status == "failed" else ""
    return f"Item {item.index:,}: {item.status}{why}{took}."


def _errors(record: Mapping[str, Any]) -> Iterator[Markup]:
    if "error" in record:
        for error in (record["error"], *record.get("others", ()))[:_MAX_ATTEMPTS]:
            yield element("p", _cut(f"{error['type']}: {error['message']}", _MAX_CHARS), class_="said")


def _first(attempts: Sequence[Mapping[str, Any]], best: Any) -> list[Mapping[str, Any]]:
    """Return the first attempts, and the answer."""
    shown = list(attempts[:_MAX_ATTEMPTS])
    return shown + [one for one in attempts[_MAX_ATTEMPTS:] if one["iteration"] == best][:1]


def _left_out(record: Mapping[str, Any]) -> Iterator[Markup]:
    attempts = record.get("attempts", ())
    hidden = len(attempts) - len(_first(attempts, record.get("best")))
    if hidden > 0:
        yield element("p", f"{hidden:,} more attempts are in the journal.", class_="lead")


def _attempt(attempt: Mapping[str, Any], record: Mapping[str, Any], descriptions: Sequence[str], known: int) -> Markup:
    answer = attempt["iteration"] == record.get("best")
    mark = "" if not answer else ", the answer" if record.get("success") else ", the best failure"
    took = short_time(max(attempt["finished_s"] - attempt["started_s"], 0.0))
    subsample = f", subsample {attempt['subsample']}" if attempt.get("subsample") else ""
    return element(
        "details",
        element("summary", f"Attempt {attempt['iteration']}{subsample}: {attempt['outcome']}{mark}, {took}"),
        *_asked(attempt, record, known),
        *_answered(attempt),
        *[element("p", text, class_=tone) for text, tone in _checks(attempt, descriptions)],
        *_error_of(attempt, record),
        open="open" if answer else None,
    )


def _asked(attempt: Mapping[str, Any], record: Mapping[str, Any], known: int) -> Iterator[Markup]:
    """Yield the last message that was sent, unless it is the item itself."""
    messages = record.get("messages", ())
    place = max(attempt.get("asked", ()), default=-1) - known
    if 0 <= place < len(messages):
        role, content = messages[place]
        yield element("pre", _cut(f"{role}: {_words(content)}", _MAX_CHARS), class_="asked")


def _words(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = cast("list[object]", content) if isinstance(content, list) else [content]
    return "\n".join(part if isinstance(part, str) else str(part) for part in parts)


def _answered(attempt: Mapping[str, Any]) -> Iterator[Markup]:
    text = attempt.get("generation", {}).get("text")
    if isinstance(text, str):
        yield element("pre", _cut(text, _MAX_CHARS))


def _checks(attempt: Mapping[str, Any], descriptions: Sequence[str]) -> Iterator[tuple[str, str]]:
    for validation in attempt.get("validations", ())[:_MAX_CHECKS]:
        position, passed, reason, _, _, name = padded_validation(validation)
        described = _cut(name or describe_requirement(position, descriptions), _MAX_CHARS)
        why = f": {_cut(reason, _MAX_CHARS)}" if reason and not passed else ""
        yield f"{'passed' if passed else 'failed'}: {described}{why}", "passed" if passed else "missed"


def _error_of(attempt: Mapping[str, Any], record: Mapping[str, Any]) -> Iterator[Markup]:
    if attempt["outcome"] == "errored" and "error" in attempt:
        error = record["errors"][attempt["error"]]
        yield element("p", _cut(f"{error['type']}: {error['message']}", _MAX_CHARS), class_="missed")


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters)"
