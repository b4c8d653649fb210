"""The record of batches and answers, in the journal if there is one."""

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias

import attrs

from sampling._json.bounded import loads
from sampling.backends._deferral import DeferredReply
from sampling.backends.http._batches import BatchClient
from sampling.fanout.batch._tickets import ParkedRequest
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

        self.in_doubt: set[str] = set()
        """The ids of requests that may have been billed in a batch that was lost, and were not sent again yet."""

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
        self.answered = set(await self._notes.names(_ANSWER))
        # The value is the name of the batch, and the position in it.
        requests = sorted(await self._notes.read(REQUEST), key=lambda note: int(note.value.split()[1]))
        members: dict[str, dict[str, int]] = {}
        for note in requests:
            members.setdefault(note.value.split()[0], {})[note.name] = note.item or 0
        self.known_ids = {loads(note.value)["batch_id"] for note in await self._notes.read(_ENDED)}
        batches: list[Batch] = []
        elsewhere: list[str] = []
        for note in await self._notes.read(BATCH):
            fields: dict[str, Any] = loads(note.value)
            self.known_ids.add(fields["batch_id"])
            client, requested = clients.get(fields["where"]), members.get(note.name, {})
            if client is not None:
                batch = Batch(note.name, client, 0, requested, resumed=True)
                for name in ("state", "batch_id", "file_id", "created_s", "size"):
                    setattr(batch, name, fields[name])
                batches.append(batch)
            elif requested and fields["state"] != "prepared":
                elsewhere.append(fields["where"])
                self.unreachable.update(requested.values())
        if elsewhere:
            self._notes.check_unreachable(elsewhere)
        return batches

    async def account(self, in_doubt: Iterable[int]) -> None:
        """Report which items of earlier processes may be billed twice."""
        if self._notes is not None:
            await self._notes.account(set(in_doubt))

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

    async def settle(self, batch: Batch, answers: Sequence[tuple[str, DeferredReply]], other: Iterable[str]) -> None:
        """Record answers, and forget requests of a batch that have none, so that they are sent again."""
        notes = [Note(_ANSWER, one, batch.requests[one], reply.body.decode()) for one, reply in answers]
        await self._put(notes, [(REQUEST, one) for one in (*[one for one, _ in answers], *other)])
        if self.is_durable:
            self.answered.update([one for one, _ in answers])

    async def end(self, batch: Batch) -> None:
        """Record that nothing more comes from a batch."""
        dropped = [(REQUEST, one) for one in batch.requests]
        await self._put([self._note(_ENDED, batch)], [*dropped, (BATCH, batch.name)])

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
