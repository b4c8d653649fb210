"""Check the schema of stored JSON."""

from collections.abc import Mapping
from typing import Any

__all__ = ["check_schema"]


def check_schema(found: Mapping[str, Any], schema: str, kind: str) -> None:
    """
    Raise `ValueError` unless an object has this schema.

    `kind` names the expected object in the message.
    """
    if found.get("schema") != schema:
        raise ValueError(f"can't read this as a {kind}: schema must be {schema!r}, got {found.get('schema')!r}")
