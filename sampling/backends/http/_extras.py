"""Check for optional packages without importing them."""

from importlib.util import find_spec

from sampling.errors import MissingExtra

__all__ = ["require_extra"]


def require_extra(what: str, extra: str, *packages: str) -> None:
    """Raise `MissingExtra` unless all packages are installed. `what` needs them."""
    for package in packages:
        if find_spec(package) is None:
            raise MissingExtra(what, package, extra)
