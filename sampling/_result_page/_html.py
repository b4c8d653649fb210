"""Show a result as HTML: a line, the lanes, and every attempt."""

from collections.abc import Iterator
from typing import Any, Final

from sampling._result_page._lanes import draw_lanes
from sampling._result_page._markup import escaped, escaped_lines
from sampling._serialization.errors import message_of
from sampling.results import SamplingResult, Slice

__all__ = ["explain_in_html"]

_MAX_ATTEMPTS: Final = 200
_MAX_CHARS: Final = 4_000

_STYLE: Final = """<style>
.sampling-result{font:14px/1.45 system-ui,-apple-system,Segoe UI,Roboto,Helvetica,Arial,sans-serif;max-width:780px;\
color:#24292f;background:#fff;border-radius:10px;padding:8px}
.sampling-result .lanes{overflow-x:auto}
.sampling-result svg{display:block;max-width:none}
.sampling-result details{border-top:1px solid #d0d7de;padding:4px 2px}
.sampling-result summary{cursor:pointer;overflow-wrap:anywhere}
.sampling-result dl{margin:4px 0 8px 18px}
.sampling-result dt{color:#57606a;font-weight:400}
.sampling-result dd{margin:0 0 6px 0;overflow-wrap:anywhere}
.sampling-result pre{margin:0;padding:6px 8px;white-space:pre-wrap;overflow-wrap:anywhere;background:#f6f8fa;\
color:inherit;border-radius:6px;max-height:24em;overflow-y:auto;\
font:13px/1.4 ui-monospace,SFMono-Regular,Menlo,monospace}
.sampling-result .passed{color:#0b5a23}
.sampling-result .failed{color:#82071e}
@media (prefers-color-scheme: dark){
.sampling-result{color:#e6edf3;background:#0d1117}
.sampling-result details{border-color:#30363d}
.sampling-result dt{color:#9ea7b3}
.sampling-result pre{background:#161b22}
.sampling-result .passed{color:#7ee787}
.sampling-result .failed{color:#ffa198}
}
</style>"""


def explain_in_html(result: SamplingResult[Any]) -> str:
    """Return a fragment of HTML. It needs no script and no other file."""
    shown = result.attempts[:_MAX_ATTEMPTS]
    if result.best is not None and all(not _is_best(one, result) for one in shown):
        shown = (*shown, result.best)
    parts = [
        '<div class="sampling-result">',
        _STYLE,
        f'<div class="lanes">{draw_lanes(result)}</div>',
    ]
    if result.stop_detail is not None:
        parts.append(f"<p>stopped by the {escaped(result.stop_detail)}</p>")
    parts += ["".join(_attempt(one, result)) for one in shown]
    if len(shown) < len(result.attempts):
        parts.append(f"<p>{len(result.attempts) - len(shown):,} more attempts: see <code>result.attempts</code>.</p>")
    parts += [
        f"<p>hook {escaped(one.hook)} on {escaped(one.event)}: {escaped(_error(one.error))}</p>"
        for one in result.hook_failures
    ]
    parts += [f"<p>note: {escaped(note)}</p>" for note in result.notes]
    return "\n".join([*parts, "</div>"])


def _attempt(attempt: Slice[Any], result: SamplingResult[Any]) -> Iterator[str]:
    best = _is_best(attempt, result)
    mark = "" if not best else " ← the answer" if result.success else " ← the best failure"
    tokens = f" · {attempt.usage.total_tokens:,} tokens" if attempt.usage.total_tokens else ""
    yield f"<details{' open' if best else ''}><summary>"
    yield f"iteration {attempt.iteration} (subsample {attempt.subsample}, attempt {attempt.attempt}): "
    yield f"<strong>{attempt.outcome}</strong> · {attempt.started_s:.2f}–{attempt.finished_s:.2f} s{tokens}"
    yield f"<strong>{mark}</strong></summary><dl>"
    yield _text("asked", attempt.action.text)
    if attempt.text is not None:
        yield _text("answered", attempt.text)
    for one in attempt.validations:
        verdict = "passed" if one.passed else "failed" if one.error is None else "broke"
        name = "a requirement" if one.requirement is None else one.requirement.description
        reason = f": {_isolated(one.reason)}" if one.reason and not one.passed else ""
        score = f" (score {one.score:g})" if one.score is not None else ""
        colour = "passed" if one.passed else "failed"
        yield f'<dt>{verdict}</dt><dd class="{colour}">{_isolated(name)}{reason}{score}</dd>'
    if attempt.outcome == "errored" and attempt.error is not None:
        yield f'<dt>error</dt><dd class="failed">{_isolated(_error(attempt.error))}</dd>'
    yield "</dl></details>"


def _is_best(attempt: Slice[Any], result: SamplingResult[Any]) -> bool:
    return result.best is not None and attempt.iteration_id == result.best.iteration_id


def _text(name: str, text: str) -> str:
    return f'<dt>{name}</dt><dd><pre dir="auto">{escaped_lines(text, _MAX_CHARS)}</pre></dd>'


def _isolated(text: str) -> str:
    """Return a text whose direction, from right to left or not, does not change the order of what is around it."""
    return f"<bdi>{escaped_lines(text, 400)}</bdi>"


def _error(error: BaseException) -> str:
    return f"{type(error).__name__}: {message_of(error)}"
