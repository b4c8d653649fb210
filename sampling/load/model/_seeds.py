"""Where chance comes from: one seed for each (run, worker, user, request), the same in every process and every year."""

import hashlib

__all__ = ["derive_seed"]


def derive_seed(*parts: int | str | None) -> int:
    """
    Make a seed of 64 bits out of what names a stream.

    A hash, not a sum: streams that are next to each other have nothing in common,
    and no worker, user or request can run into the stream of another.
    """
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest())
