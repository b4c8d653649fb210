"""Import the MODULE:NAME that a flag names."""

import importlib
import sys
from pathlib import Path
from typing import Any

from sampling._arguments import short_repr
from sampling.cli._stdout import only_results
from sampling.cli._suggestions import closest, did_you_mean

__all__ = ["import_target"]


def import_target(flag: str, spec: str, *, usage: str = "MODULE:NAME, such as shop.load:chat") -> Any:
    """
    Import a name from a module, or raise ValueError with what is wrong.

    Modules are also found in the current directory.
    """
    module_name, _, path = spec.partition(":")
    if not module_name or not path:
        raise ValueError(f"{flag} must be {usage}, got {short_repr(spec)}")
    _find_in_current_directory()
    found: Any = _import_module(flag, module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            raise ValueError(f"{flag}: {module_name} has no {path}{did_you_mean(_similar(found, name))}")
        found = getattr(found, name)
    return found


def _find_in_current_directory() -> None:
    # The installed command has the directory of the script there, and not the current one.
    directory = str(Path.cwd())
    if directory not in sys.path and "" not in sys.path:
        sys.path.insert(0, directory)


def _import_module(flag: str, name: str) -> object:
    try:
        with only_results():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ValueError(
                f"{flag}: there is no module {error.name!r}, neither installed nor in {Path.cwd()}"
            ) from None
        raise ValueError(f"{flag}: {name} can't be imported: {error}") from None
    except (Exception, SystemExit) as error:
        # Whatever a module raises, it is the user's own, so its type helps. A script without a main guard may exit.
        raise ValueError(f"{flag}: {name} can't be imported: {type(error).__name__}: {error}") from error


def _similar(found: object, name: str) -> str | None:
    """Return the public name with the closest spelling, as a class or as a function."""
    return closest(name, [one for one in dir(found) if one[0] != "_" and one[0].isupper() == name[0].isupper()])
