"""The record of batches and answers, in the journal if there is one."""

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias

import attrs

from sampling._json.bounded import loads
from sampling.backends._deferral import DeferredReply
from sampling.backends.http._batches import BatchClient
from sampling.fanout.batch._tickets import ItemRequests, ParkedRequest, digest_of
from sampling.fanout.engines import EngineNotes, Note
from sampling.fanout.journal._notes import BATCH, REQUEST

__all__ = ["Batch", "Ledger"]

State: TypeAlias = Literal["prepared", "sending", "running", "cancelling"]
"""
The state of a batch. It is recorded before the step that it names:

"prepared": nothing can have been billed. "sending": it may exist at the provider. "running": its id is known.
"cancelling": this library has cancelled it.
"""

_ENDED: Final = "ended batch"
_ANSWER: Final = "answer"
_DOUBT: Final = "doubt"
"""The kind of the notes on requests that were probably billed, and whose answers are lost."""


@attrs.define(eq=False)
class Batch:
    """A batch, and the requests that are not settled yet."""

    name: str
    client: BatchClient
    number: int
    requests: dict[str, int]
    """The places of the items, by the id of the request. Settled ones are removed."""

    tickets: dict[str, ParkedRequest] = attrs.field(factory=dict[str, ParkedRequest])
    """The requests that wait for it, by their ids."""

    state: State = "prepared"
    batch_id: str | None = None
    file_id: str | None = None
    created_s: float = attrs.field(factory=time.time)
    candidates: list[str] = attrs.field(factory=list[str])
    """Batches at the provider that may be this one, if its id could not be recorded and the provider keeps no names."""

    size: int = attrs.field(init=False)
    resumed: bool = False
    timed_out: bool = False
    is_verified: bool = True
    """False until the results have shown that it really is this batch."""

    is_in_doubt: bool = False
    """True while it may exist at the provider, and was not looked for with success."""

    denials: int = 0
    """The number of polls in a row that did not find it."""

    error: Exception | None = None
    """The error that ended its polling."""

    def __attrs_post_init__(self) -> None:
        self.size = len(self.requests)


class Ledger:
    """Records what a later process needs to know. Without a journal, it records nothing."""

    def __init__(self, notes: EngineNotes | None) -> None:
        self._notes = notes
        self.answered: set[str] = set()
        """The ids of requests whose answers are in the journal."""

        self._in_doubt: set[str] = set()
        """The digests of requests that may have been billed without an answer, and were not sent again yet."""

        self._inherited: dict[int, set[str]] = {}
        """The ids of requests of earlier processes that have an answer or are in a batch, by the places of items."""

        self.known_ids: set[str] = set()
        """The ids of all batches of the run, at the provider."""

        self.unreachable: set[int] = set()
        """The places of items with a request in a batch at a provider or an address that this run does not use."""

    @property
    def is_durable(self) -> bool:
        """True if a later process can continue with the batches of this one."""
        return self._notes is not None

    async def load(self, clients: dict[str, BatchClient]) -> list[Batch]:
        """
        Return the batches of earlier processes that have not ended.

        Batches elsewhere are left alone. Their requests would be paid for again, so that is refused unless the journal
        continues after changes.
        """
        if self._notes is None:
            return []
        await self._notes.begin()
        answered = await self._notes.items(_ANSWER)
        self.answered = set(answered)
        self._in_doubt = set(map(digest_of, await self._notes.items(_DOUBT)))
        # The value is the name of the batch, and the position in it.
        requests = sorted(await self._notes.read(REQUEST), key=lambda note: int(note.value.split()[1]))
        members: dict[str, dict[str, int]] = {}
        for note in requests:
            members.setdefault(note.value.split()[0], {})[note.name] = note.item or 0
        self._inherit(answered.items())
        self.known_ids = {loads(note.value)["batch_id"] for note in await self._notes.read(_ENDED)}
        batches: list[Batch] = []
        elsewhere: list[str] = []
        for note in await self._notes.read(BATCH):
            fields: dict[str, Any] = loads(note.value)
            self.known_ids.add(fields["batch_id"])
            # Older journals have the address of Anthropic as it was given.
            client = clients.get(fields["where"]) or clients.get(fields["where"].removesuffix("/v1"))
            requested = members.get(note.name, {})
            if fields["state"] != "prepared":
                self._inherit(requested.items())
            if client is not None:
                batches.append(_read_batch(note.name, client, requested, fields))
            elif requested and fields["state"] != "prepared":
                elsewhere.append(fields["where"])
                self.unreachable.update(requested.values())
        if elsewhere:
            self._notes.check_unreachable(elsewhere)
        return batches

    def _inherit(self, requests: Iterable[tuple[str, int | None]]) -> None:
        for custom_id, item in requests:
            self._inherited.setdefault(item or 0, set()).add(custom_id)

    def check_inherited(self, requests: ItemRequests) -> None:
        """Report an item that has sent requests although earlier ones of it, which differ, were paid for."""
        unused = self._inherited.pop(requests.slot, set[str]()).difference(requests.ids)
        if unused and requests.has_new and self._notes is not None:
            self._notes.maybe_billed_twice(requests.item.index)

    async def account(self, in_doubt: Iterable[int]) -> None:
        """Report which items of earlier processes may be billed twice."""
        if self._notes is not None:
            await self._notes.account(set(in_doubt))

    def doubt(self, custom_ids: Iterable[str]) -> None:
        """Remember that requests may have been billed, and that it is to be reported if they are sent again."""
        self._in_doubt.update(map(digest_of, custom_ids))

    def send(self, request: ParkedRequest) -> None:
        """Report that an item may be billed twice, if it was billed before for the same question."""
        digest = digest_of(request.custom_id)
        if digest in self._in_doubt:
            self._in_doubt.remove(digest)
            self.maybe_billed_twice([request])

    def maybe_billed_twice(self, requests: Iterable[ParkedRequest]) -> None:
        """Report that items may be billed twice."""
        if self._notes is not None:
            for request in requests:
                self._notes.maybe_billed_twice(request.item.index)

    async def begin(self, batch: Batch) -> None:
        """Record a batch and its requests, before anything is sent."""
        members = enumerate(batch.requests.items())
        notes = [Note(REQUEST, one, slot, f"{batch.name} {position}") for position, (one, slot) in members]
        await self._put([*notes, self._note(BATCH, batch)])

    async def update(self, batch: Batch) -> None:
        """Record the state of a batch."""
        if batch.batch_id is not None and batch.is_verified:
            self.known_ids.add(batch.batch_id)
        await self._put([self._note(BATCH, batch)])

    async def settle(
        self, batch: Batch, answers: Sequence[tuple[str, DeferredReply]], other: Iterable[str], lost: Sequence[str] = ()
    ) -> None:
        """Record answers, and forget requests that have none, so that they are sent again. `lost` were billed."""
        notes = [Note(_ANSWER, one, batch.requests[one], reply.body.decode()) for one, reply in answers]
        settled = (*[one for one, _ in answers], *other)
        await self._put([*notes, *self._doubts(batch, lost)], [(REQUEST, one) for one in settled])
        self.doubt(lost)
        if self.is_durable:
            self.answered.update([one for one, _ in answers])

    async def end(self, batch: Batch, *, is_lost: bool = False) -> None:
        """Record that nothing more comes from a batch. If it is lost, its requests may have been billed."""
        lost = tuple(batch.requests) if is_lost else ()
        dropped = [(REQUEST, one) for one in batch.requests]
        notes = [self._note(_ENDED, batch), *self._doubts(batch, lost)]
        await self._put(notes, [*dropped, (BATCH, batch.name)])
        self.doubt(lost)

    def _doubts(self, batch: Batch, custom_ids: Iterable[str]) -> list[Note]:
        return [Note(_DOUBT, one, batch.requests[one], "") for one in custom_ids]

    async def reject(self, custom_ids: Sequence[str], slot: int) -> None:
        """Forget answers that can't be read. Else a resume would get the same error for ever."""
        if custom_ids:
            doubts = [Note(_DOUBT, one, slot, "") for one in custom_ids]
            await self._put(doubts, [(_ANSWER, one) for one in custom_ids])
            self.answered.difference_update(custom_ids)
            self.doubt(custom_ids)

    async def answer(self, custom_id: str) -> DeferredReply | None:
        """Return a recorded answer."""
        found = None if self._notes is None else await self._notes.get(_ANSWER, custom_id)
        return None if found is None else DeferredReply(200, found.encode())

    async def _put(self, notes: Sequence[Note], dropped: Sequence[tuple[str, str]] = ()) -> None:
        if self._notes is not None:
            await self._notes.put(notes, dropped)

    def _note(self, kind: str, batch: Batch) -> Note:
        # A later process must look for it again, as long as another batch may have been mistaken for it.
        is_known = batch.is_verified
        fields = {
            "where": batch.client.where,
            "state": batch.state if is_known else "sending",
            "batch_id": batch.batch_id if is_known else None,
            "file_id": batch.file_id,
            "created_s": batch.created_s,
            "size": batch.size,
        }
        return Note(kind, batch.name, None, json.dumps(fields))


def _read_batch(name: str, client: BatchClient, requests: dict[str, int], fields: dict[str, Any]) -> Batch:
    batch = Batch(name, client, 0, requests, resumed=True)
    for field in ("state", "batch_id", "file_id", "created_s", "size"):
        setattr(batch, field, fields[field])
    return batch
