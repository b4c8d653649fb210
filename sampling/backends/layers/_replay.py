"""Record what a backend answers, and replay it later, without the backend."""

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
from sampling._message_json import canonical, digest
from sampling._text import quoted
from sampling.backends.layers import _cassette as cassette
from sampling.backends.layers._cassette import Entry
from sampling.backends.layers._layer import NOTHING, Delivery, Layer, Metered, Receive, ask, deliver
from sampling.errors import CassetteMiss
from sampling.messages import Generation, Request
from sampling.protocols import BackendLike

__all__ = ["Recorded", "Replayed"]

_REMEMBERED_CALLS = 65_536
_MOST_STEPS = 1_000
_STEPS_OF_GRACE = 100


class Recorded(Layer):
    """
    Write down what a backend answers, for `Replayed` to answer the same.

    Everything is recorded: answers, errors, streams and their pieces, and that a request was cancelled.
    Headers and keys are not: they are no part of a request, and of `options.extra` only digests are kept.
    Prompts and answers are, word for word.
    """

    def __init__(self, backend: BackendLike, path: str | Path, *, append: bool = False) -> None:
        """
        Wrap a backend.

        Args:
            backend: What to ask.

            path: The file to write to, one line of JSON for each request.

            append: Go on with a file that is there already; without it, such a file is an error.
        """
        super().__init__(backend)
        self.path = Path(path)
        self._calls: OrderedDict[str, _Call] = OrderedDict()
        self._next_call = 0
        if check_bool("append", append) and self.path.exists():
            cassette.mend(self.path)
            self._next_call = 1 + max((entry.call or 0 for entry in cassette.read(self.path)), default=-1)
        else:
            cassette.create(self.path)

    async def _answer(self, request: Request, receive: Receive | None) -> Generation:
        question = cassette.question_of(request)
        call = self._call_of(request)
        asked_after, asked_at = call.ended, anyio.current_time()
        delivery = None if receive is None else Delivery(receive)
        meter = Metered()
        generation, error = None, None
        try:
            with meter:
                generation = await ask(self.inner[0], request, delivery)
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
                request=question,
                asked_after=asked_after,
                asked_s=asked_at - call.began_at,
                ended_s=anyio.current_time() - call.began_at,
                ending=_ending(generation, error, delivery),
                generation=generation,
                error=None if delivery is not None and delivery.cut else error,
                used=meter.used if generation is None else None,
                pieces=None if delivery is None else tuple(delivery.pieces),
            )
            cassette.append(self.path, entry)

    def _call_of(self, request: Request) -> "_Call":
        """Return the call of a request. Outside of any call, a request is a call by itself."""
        now = anyio.current_time()
        if not request.sampling_id:
            return _Call(None, now)
        if request.sampling_id not in self._calls:
            self._calls[request.sampling_id] = _Call(self._next_call, now)
            self._next_call += 1
            if len(self._calls) > _REMEMBERED_CALLS:
                self._calls.popitem(last=False)
        return self._calls[request.sampling_id]

    def _settings(self) -> dict[str, object]:
        return {"path": str(self.path)}


@attrs.define
class _Call:
    """The state of a call while it is recorded."""

    number: int | None
    began_at: float
    ended: int = 0
    """How many of its requests have ended."""


def _ending(generation: Generation | None, error: Exception | None, delivery: Delivery | None) -> cassette.Ending:
    if generation is not None:
        return "answer"
    if delivery is not None and delivery.cut:
        return "cut"
    return "cancelled" if error is None else "error"


class Replayed:
    """
    Answer as a recorded backend did: the same answers and errors, to the same samples, in the same order.

    Requests are told apart by what they ask, by subsample and attempt, and by how often the same was asked before.
    A call of `sample()` is matched with one recorded call as a whole, so calls that ask the same do not get mixed up.
    Within a call, requests end in the order in which they ended then, so the same one wins;
    a request that was cancelled then is not answered now, but waits to be cancelled.

    What was never recorded is a `CassetteMiss` that shows the nearest request and what differs.
    """

    def __init__(self, path: str | Path, *, pace: float = 0.0, patience_s: float = 60.0) -> None:
        """
        Read a cassette.

        Args:
            path: What `Recorded` wrote.

            pace: How long answers take, as a share of how long they took: 0 for at once, 1 for as long as then.

            patience_s: How long a request waits for its turn. If that comes to pass, this run does not ask
                what the recorded one asked, and the request fails with a `CassetteMiss`.
        """
        self.path = Path(path)
        self.pace = check_number("pace", pace, least=0)
        self.patience_s = check_number("patience_s", patience_s, above=0)
        entries = cassette.read(self.path)
        self._loose = _Reel([entry for entry in entries if entry.call is None], ordered=False)
        self._reels = _reels_of(entries)
        self._unplayed: dict[_Key, deque[_Reel]] = defaultdict(deque)
        for reel in self._reels:
            for key in reel.by_key:
                self._unplayed[key].append(reel)
        self._playing: OrderedDict[str, _Reel] = OrderedDict()

    async def generate(self, request: Request) -> Generation:
        """Answer as was recorded."""
        return await self._answer(request, None)

    async def stream(self, request: Request, receive: Receive) -> Generation:
        """Answer as was recorded, in the pieces that were."""
        return await self._answer(request, receive)

    async def _answer(self, request: Request, receive: Receive | None) -> Generation:
        question = cassette.question_of(request)
        key = (digest(question), request.subsample, request.attempt)
        reel = self._reel_for(request.sampling_id, key)
        frame = None if reel is None else reel.take(key)
        if reel is None or frame is None:
            await _let_others_win()
            raise self._miss(question, request)
        entry = frame.entry
        if entry.used is not None:
            report_usage(entry.used)
        try:
            await anyio.sleep(self.pace * (entry.ended_s - entry.asked_s))
            await reel.wait_for_turn(frame, self.patience_s)
            return _play(entry, receive)
        finally:
            reel.finish(frame)

    def _reel_for(self, sampling_id: str, key: "_Key") -> "_Reel | None":
        """Return the recorded call that this call replays: when it asks for the first time, the first that fits."""
        if not sampling_id:
            return self._loose
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

    def _miss(self, question: dict[str, Any], request: Request) -> CassetteMiss:
        asked = _flat({**question, "subsample": request.subsample, "attempt": request.attempt})
        frames = [frame for reel in (self._loose, *self._reels) for frame in reel.frames]
        differences = min((_differences(_flat_entry(frame.entry), asked) for frame in frames), key=len, default=None)
        if differences is None:
            return CassetteMiss(f"{self.path} has no requests in it")
        if not differences:
            return CassetteMiss(
                f"{self.path} has this request, but not as often as it is asked here, or in another call"
            )
        return CassetteMiss(f"{self.path} has no such request; the nearest differs in {'; '.join(differences)}")

    def __repr__(self) -> str:
        return f"Replayed({str(self.path)!r})"


_Key = tuple[str, int, int]


@attrs.define(eq=False)
class _Frame:
    """One entry, while it is replayed."""

    entry: Entry
    rank: int
    """How many entries of the call ended before it."""

    asked: bool = False
    ended: bool = False
    called: anyio.Event | None = None

    @property
    def is_answered(self) -> bool:
        return self.entry.ending != "cancelled"


class _Reel:
    """The entries of one call, in order. Entries outside of any call have no order."""

    def __init__(self, entries: Iterable[Entry], *, ordered: bool = True) -> None:
        self.frames = [_Frame(entry, rank) for rank, entry in enumerate(entries)]
        self.playing = False
        self._ordered = ordered
        self._by_ask = sorted(self.frames, key=lambda frame: frame.entry.asked_after)
        self._next_to_ask = 0
        self._next_to_end = 0
        self.by_key: dict[_Key, deque[_Frame]] = defaultdict(deque)
        for frame in sorted(self.frames, key=lambda frame: frame.entry.asked_s):
            entry = frame.entry
            self.by_key[digest(entry.request), entry.subsample, entry.attempt].append(frame)

    def take(self, key: _Key) -> _Frame | None:
        """Return the next entry for a request, if there is one left."""
        frames = self.by_key.get(key)
        if not frames:
            return None
        frame = frames.popleft()
        frame.asked = True
        self._call_next()
        return frame

    def finish(self, frame: _Frame) -> None:
        """Note that a request has ended, as it was recorded or not."""
        frame.ended = True
        self._call_next()

    async def wait_for_turn(self, frame: _Frame, patience_s: float) -> None:
        """Wait until everything has happened that had happened when this entry was recorded."""
        frame.called = anyio.Event()
        if not self._ordered and frame.is_answered:
            frame.called.set()
        self._call_next()
        if not frame.called.is_set():
            with anyio.move_on_after(patience_s):
                await frame.called.wait()
        # Once it is called, with others that ended in the same instant, none of them may have it cancelled.
        await cancel_shielded_checkpoint()
        for _ in range(_MOST_STEPS):
            if not frame.called.is_set() or self._may_end(frame):
                break
            await cancel_shielded_checkpoint()
        if not frame.called.is_set() or not self._may_end(frame):
            raise CassetteMiss(
                "in the recording others were asked or answered before this request, and here they are not"
                if frame.is_answered
                else "in the recording this request was cancelled, and here nobody cancels it"
            )

    def _call_next(self) -> None:
        """Wake the one whose turn it is, and with it all that ended in the same instant, as happens in virtual time."""
        while self._next_to_end < len(self.frames) and self._is_past(self.frames[self._next_to_end]):
            self._next_to_end += 1
        while self._next_to_ask < len(self.frames) and self._by_ask[self._next_to_ask].asked:
            self._next_to_ask += 1
        following = self.frames[self._next_to_end :]
        if not following or not self._may_end(following[0]):
            return
        together = [frame for frame in self._ended_with(following) if not self._is_past(frame)]
        # Those that were under way by then have to be here, or the first of them might win and have them cancelled.
        if all(frame.called is not None or frame.entry.asked_after > following[0].rank for frame in together):
            for frame in together:
                if frame.called is not None:
                    frame.called.set()

    @staticmethod
    def _ended_with(following: list[_Frame]) -> Iterable[_Frame]:
        return takewhile(lambda frame: frame.entry.ended_s == following[0].entry.ended_s, following)

    def _is_past(self, frame: _Frame) -> bool:
        return frame.ended or not frame.is_answered

    def _may_end(self, frame: _Frame) -> bool:
        if not self._ordered:
            return True
        all_asked = self._next_to_ask == len(self.frames)
        return frame.rank <= self._next_to_end and (
            all_asked or frame.rank < self._by_ask[self._next_to_ask].entry.asked_after
        )


async def _let_others_win() -> None:
    """
    Give the winner of a call a moment to end it.

    Where answers come at once, the call may have been over before this request was even asked,
    and then it has no entry, although nothing is wrong.
    """
    await checkpoint()
    for _ in range(_STEPS_OF_GRACE):
        await checkpoint()


def _reels_of(entries: Iterable[Entry]) -> list[_Reel]:
    calls: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.call is not None:
            calls[entry.call].append(entry)
    return [_Reel(calls[call]) for call in sorted(calls)]


def _play(entry: Entry, receive: Receive | None) -> Generation:
    """Let come of a request what came of it then."""
    if receive is not None:
        deliver(entry.generation or Generation("", entry.used or NOTHING), receive, entry.pieces)
    if entry.error is not None:
        raise entry.error
    if entry.generation is None:
        raise CassetteMiss("in the recording this was a stream that its receiver cut off, and here it goes on")
    return entry.generation


def _flat_entry(entry: Entry) -> dict[str, object]:
    return _flat({**entry.request, "subsample": entry.subsample, "attempt": entry.attempt})


def _flat(value: object, path: str = "") -> dict[str, object]:
    """Return every leaf of JSON values with the path to it."""
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
    """Format a value. A long text starts where it begins to differ."""
    value, opposite = one.get(path), other.get(path)
    if not isinstance(value, str):
        return "nothing" if path not in one else canonical(value)
    pairs = zip(value, opposite if isinstance(opposite, str) else "", strict=False)
    start = max(0, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) - 20)
    return f"{'…' if start else ''}{quoted(value[start:], 60)}"
