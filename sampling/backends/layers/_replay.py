"""Record the answers of a backend, and replay them without it."""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

import anyio
import attrs
from anyio.lowlevel import cancel_shielded_checkpoint, checkpoint

from sampling._arguments import check_bool, check_number
from sampling._engine.scope import report_usage
from sampling._serialization.messages import canonical, digest
from sampling._text import quoted
from sampling.backends.layers import _cassette as cassette
from sampling.backends.layers._cassette import Entry
from sampling.backends.layers._layer import (
    Layer,
    Receive,
    TrackedReceiver,
    UsageMeter,
    call_backend,
    pass_on_text,
)
from sampling.errors import CassetteMiss
from sampling.messages import Generation, Request
from sampling.protocols import BackendLike
from sampling.usage import NO_USAGE

__all__ = ["Recorded", "Replayed"]

_REMEMBERED_CALLS = 65_536
_MOST_CHECKPOINTS = 1_000
_GRACE_CHECKPOINTS = 100


class Recorded(Layer):
    """
    A backend that records every request and answer for `Replayed`.

    The file holds answers, errors, the pieces of streams, and which requests were cancelled.
    Prompts and answers are recorded word for word. Headers and keys are not: they are not part of a request,
    and the text values in `options.extra` are recorded as digests.
    """

    def __init__(self, backend: BackendLike, path: str | Path, *, append: bool = False) -> None:
        """
        Wrap a backend.

        Args:
            backend: The backend to wrap.

            path: The file to write, one line of JSON per request.

            append: Append to an existing file. By default an existing file is an error.
        """
        super().__init__(backend)
        self.path: Path = Path(path)
        self._calls: OrderedDict[str, _RecordedCall] = OrderedDict()
        self._next_call = 0
        if check_bool("append", append) and self.path.exists():
            cassette.remove_partial_line(self.path)
            self._next_call = 1 + max((entry.call or 0 for entry in cassette.read(self.path)), default=-1)
        else:
            cassette.create(self.path)

    async def _answer(self, request: Request, receive: Receive | None) -> Generation:
        content = cassette.recordable_request(request)
        call = self._call_of(request)
        asked_after, asked_at = call.ended, anyio.current_time()
        receiver = None if receive is None else TrackedReceiver(receive)
        meter = UsageMeter()
        generation, error = None, None
        try:
            with meter:
                generation = await call_backend(self.inner[0], request, receiver)
        except Exception as failure:
            error = failure
            raise
        else:
            return generation
        finally:
            call.ended += 1
            entry = Entry(
                call=call.number,
                subsample=request.subsample,
                attempt=request.attempt,
                request=content,
                asked_after=asked_after,
                asked_s=asked_at - call.began_at,
                ended_s=anyio.current_time() - call.began_at,
                ending=_ending(generation, error, receiver),
                generation=generation,
                error=None if receiver is not None and receiver.cut else error,
                used=meter.used if generation is None else None,
                pieces=None if receiver is None else tuple(receiver.pieces),
            )
            cassette.append(self.path, entry)

    def _call_of(self, request: Request) -> "_RecordedCall":
        """Return the call of a request."""
        # A request outside of any call gets one of its own.
        now = anyio.current_time()
        if not request.sampling_id:
            return _RecordedCall(None, now)
        if request.sampling_id not in self._calls:
            self._calls[request.sampling_id] = _RecordedCall(self._next_call, now)
            self._next_call += 1
            if len(self._calls) > _REMEMBERED_CALLS:
                self._calls.popitem(last=False)
        return self._calls[request.sampling_id]

    def _settings(self) -> dict[str, object]:
        return {"path": str(self.path)}


@attrs.define
class _RecordedCall:
    """The state of a call while it is recorded."""

    number: int | None
    began_at: float
    ended: int = 0
    """The number of its requests that have ended."""


def _ending(
    generation: Generation | None, error: Exception | None, receiver: TrackedReceiver | None
) -> cassette.Ending:
    if generation is not None:
        return "answer"
    if receiver is not None and receiver.cut:
        return "cut"
    return "cancelled" if error is None else "error"


class Replayed:
    """
    A backend that replays a cassette: the same answers and errors in the same order.

    A request is identified by its content, its subsample and attempt, and the number of identical requests before it.
    A call of `sample()` is matched with one recorded call as a whole, so that calls with equal requests don't mix.
    Within a call, requests end in the recorded order, so the same one wins.
    A request that was cancelled in the recording gets no answer, but waits to be cancelled.

    A request that was never recorded raises a `CassetteMiss` that shows the nearest one and the differences.
    """

    def __init__(self, path: str | Path, *, pace: float = 0.0, patience_s: float = 60.0) -> None:
        """
        Read a cassette.

        Args:
            path: The file that `Recorded` wrote.

            pace: The share of the recorded time that answers take: 0 for none, 1 for as long as in the recording.

            patience_s: The time that a request waits for its turn. If its turn does not come, this run sends other
                requests than the recorded one, and the request fails with a `CassetteMiss`.
        """
        self.path: Path = Path(path)
        self.pace: float = check_number("pace", pace, least=0)
        self.patience_s: float = check_number("patience_s", patience_s, above=0)
        entries = cassette.read(self.path)
        self._outside_calls = _ReplayCall([entry for entry in entries if entry.call is None], ordered=False)
        self._calls = _group_by_call(entries)
        self._unplayed: dict[_Key, deque[_ReplayCall]] = defaultdict(deque)
        for call in self._calls:
            for key in call.by_key:
                self._unplayed[key].append(call)
        self._playing: OrderedDict[str, _ReplayCall] = OrderedDict()

    async def generate(self, request: Request) -> Generation:
        """Return the recorded answer."""
        return await self._answer(request, None)

    async def stream(self, request: Request, receive: Receive) -> Generation:
        """Return the recorded answer, and pass on its recorded pieces."""
        return await self._answer(request, receive)

    async def _answer(self, request: Request, receive: Receive | None) -> Generation:
        content = cassette.recordable_request(request)
        key = (digest(content), request.subsample, request.attempt)
        call = self._call_for(request.sampling_id, key)
        item = None if call is None else call.take(key)
        if call is None or item is None:
            await _yield_to_winner()
            raise self._miss(content, request)
        entry = item.entry
        if entry.used is not None:
            # Before waiting, so that it counts if the request is cancelled now as it was then.
            report_usage(entry.used)
        try:
            await anyio.sleep(self.pace * (entry.ended_s - entry.asked_s))
            await call.wait_for_turn(item, self.patience_s)
            return _replay(entry, receive)
        finally:
            call.finish(item)

    def _call_for(self, sampling_id: str, key: "_Key") -> "_ReplayCall | None":
        """Return the recorded call that a call replays, or None."""
        # The first request of a call chooses it.
        if not sampling_id:
            return self._outside_calls
        if sampling_id not in self._playing:
            candidates = self._unplayed[key]
            while candidates and candidates[0].playing:
                candidates.popleft()
            if not candidates:
                return None
            candidates[0].playing = True
            self._playing[sampling_id] = candidates[0]
            if len(self._playing) > _REMEMBERED_CALLS:
                self._playing.popitem(last=False)
        return self._playing[sampling_id]

    def _miss(self, content: dict[str, Any], request: Request) -> CassetteMiss:
        asked = _flat({**content, "subsample": request.subsample, "attempt": request.attempt})
        items = [item for call in (self._outside_calls, *self._calls) for item in call.items]
        differences = min((_differences(_flat_entry(item.entry), asked) for item in items), key=len, default=None)
        if differences is None:
            return CassetteMiss(f"{self.path} has no requests in it")
        if not differences:
            return CassetteMiss(
                f"{self.path} has this request, but fewer times than it was sent here, or in another call"
            )
        return CassetteMiss(f"{self.path} has no such request; the nearest differs in {'; '.join(differences)}")

    def __repr__(self) -> str:
        return f"Replayed({str(self.path)!r})"


_Key = tuple[str, int, int]


@attrs.define(eq=False)
class _ReplayEntry:
    """The state of an entry while it is replayed."""

    entry: Entry
    rank: int
    """The number of entries of the call that ended before it."""

    asked: bool = False
    ended: bool = False
    called: anyio.Event | None = None

    @property
    def is_answered(self) -> bool:
        return self.entry.ending != "cancelled"


class _ReplayCall:
    """
    The entries of one recorded call, in order.

    Entries outside of any call have no order.
    """

    def __init__(self, entries: Iterable[Entry], *, ordered: bool = True) -> None:
        self.items = [_ReplayEntry(entry, rank) for rank, entry in enumerate(entries)]
        self.playing = False
        self._ordered = ordered
        self._by_ask = sorted(self.items, key=lambda item: item.entry.asked_after)
        self._next_to_ask = 0
        self._next_to_end = 0
        self.by_key: dict[_Key, deque[_ReplayEntry]] = defaultdict(deque)
        for item in sorted(self.items, key=lambda item: item.entry.asked_s):
            entry = item.entry
            self.by_key[digest(entry.request), entry.subsample, entry.attempt].append(item)

    def take(self, key: _Key) -> _ReplayEntry | None:
        """Return the next entry for a request, or None."""
        items = self.by_key.get(key)
        if not items:
            return None
        item = items.popleft()
        item.asked = True
        self._call_next()
        return item

    def finish(self, item: _ReplayEntry) -> None:
        """Record that a request has ended, as it was recorded or otherwise."""
        item.ended = True
        self._call_next()

    async def wait_for_turn(self, item: _ReplayEntry, patience_s: float) -> None:
        """Wait for the requests that were sent or ended before this one in the recording."""
        item.called = anyio.Event()
        if not self._ordered and item.is_answered:
            item.called.set()
        self._call_next()
        if not item.called.is_set():
            with anyio.move_on_after(patience_s):
                await item.called.wait()
        # Shielded: of several requests that ended at the same time in the recording, the first must not cancel
        # the others before they have ended too.
        await cancel_shielded_checkpoint()
        for _ in range(_MOST_CHECKPOINTS):
            if not item.called.is_set() or self._may_end(item):
                break
            await cancel_shielded_checkpoint()
        if not item.called.is_set() or not self._may_end(item):
            raise CassetteMiss(
                "in the recording other requests were sent or answered before this one, but not in this run"
                if item.is_answered
                else "in the recording this request was cancelled, but not in this run"
            )

    def _call_next(self) -> None:
        """
        Wake the request whose turn it is.

        Requests that ended at the same time, as happens in virtual time, are woken together.
        """
        while self._next_to_end < len(self.items) and self._is_past(self.items[self._next_to_end]):
            self._next_to_end += 1
        while self._next_to_ask < len(self.items) and self._by_ask[self._next_to_ask].asked:
            self._next_to_ask += 1
        following = self.items[self._next_to_end :]
        if not following or not self._may_end(following[0]):
            return
        together = [item for item in self._ended_with(following) if not self._is_past(item)]
        # Wait for those that were in flight at that time, or the first one might win and cancel them.
        if all(item.called is not None or item.entry.asked_after > following[0].rank for item in together):
            for item in together:
                if item.called is not None:
                    item.called.set()

    @staticmethod
    def _ended_with(following: list[_ReplayEntry]) -> Iterable[_ReplayEntry]:
        return takewhile(lambda item: item.entry.ended_s == following[0].entry.ended_s, following)

    def _is_past(self, item: _ReplayEntry) -> bool:
        return item.ended or not item.is_answered

    def _may_end(self, item: _ReplayEntry) -> bool:
        if not self._ordered:
            return True
        all_asked = self._next_to_ask == len(self.items)
        return item.rank <= self._next_to_end and (
            all_asked or item.rank < self._by_ask[self._next_to_ask].entry.asked_after
        )


async def _yield_to_winner() -> None:
    """
    Give the winner of a call time to end it.

    Replayed answers arrive at once. In the recording the call may have ended before this request was sent,
    and then it has no entry although nothing is wrong. In that case the winner cancels it here.
    """
    await checkpoint()
    for _ in range(_GRACE_CHECKPOINTS):
        await checkpoint()


def _group_by_call(entries: Iterable[Entry]) -> list[_ReplayCall]:
    calls: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.call is not None:
            calls[entry.call].append(entry)
    return [_ReplayCall(calls[call]) for call in sorted(calls)]


def _replay(entry: Entry, receive: Receive | None) -> Generation:
    """Return or raise the recorded outcome of a request."""
    if receive is not None:
        pass_on_text(entry.generation or Generation("", entry.used or NO_USAGE), receive, entry.pieces)
    if entry.error is not None:
        raise entry.error
    if entry.generation is None:
        raise CassetteMiss("in the recording the receiver stopped this stream, but not in this run")
    return entry.generation


def _flat_entry(entry: Entry) -> dict[str, object]:
    return _flat({**entry.request, "subsample": entry.subsample, "attempt": entry.attempt})


def _flat(value: object, path: str = "") -> dict[str, object]:
    """Return every leaf of a JSON value by its path."""
    if isinstance(value, dict):
        pairs = [
            (f"{path}.{key}" if path else str(key), item) for key, item in cast("dict[str, object]", value).items()
        ]
    elif isinstance(value, list):
        pairs = [(f"{path}[{place}]", item) for place, item in enumerate(cast("list[object]", value))]
    else:
        return {path: value}
    return {leaf: item for key, part in pairs for leaf, item in _flat(part, key).items()}


def _differences(recorded: dict[str, object], asked: dict[str, object]) -> list[str]:
    paths = [path for path in {**recorded, **asked} if recorded.get(path) != asked.get(path)]
    return [
        f"{path} (recorded {_excerpt(recorded, asked, path)}, asked {_excerpt(asked, recorded, path)})"
        for path in paths
    ]


def _excerpt(one: dict[str, object], other: dict[str, object], path: str) -> str:
    """Format a value. A long text starts shortly before the first difference."""
    value, opposite = one.get(path), other.get(path)
    if not isinstance(value, str):
        return "nothing" if path not in one else canonical(value)
    pairs = zip(value, opposite if isinstance(opposite, str) else "", strict=False)
    start = max(0, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) - 20)
    return f"{'…' if start else ''}{quoted(value[start:], 60)}"
