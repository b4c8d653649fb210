"""
Seeds for each run, worker, user and request.

They are the same in every process and Python version.
"""

import hashlib

__all__ = ["derive_seed"]


def derive_seed(*parts: int | str | None) -> int:
    """
    Derive a 64-bit seed for a stream.

    The parts identify the stream.
    It is a hash, not a sum, so that neighbouring streams are unrelated and no two workers, users or requests
    share one.
    """
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest())
