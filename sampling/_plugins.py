"""Load hooks of installed distributions from the entry-point group `sampling.plugins`."""

import os
from collections.abc import Callable
from functools import cache
from typing import Any

from sampling.errors import PluginFailed
from sampling.hooks import Hooks

__all__ = ["ENTRY_POINT_GROUP", "installed_hooks"]

ENTRY_POINT_GROUP = "sampling.plugins"


@cache
def installed_hooks() -> Hooks:
    """
    Return the hooks of all installed plugins.

    They are loaded once per process, at the first call. An entry point is a `Hooks` object,
    or a function that registers hooks on the `Hooks` passed to it.
    Set `SAMPLING_PLUGINS=off` in the environment to disable all plugins.
    """
    hooks = Hooks()
    if os.environ.get("SAMPLING_PLUGINS", "").lower() in {"off", "0", "false", "no"}:
        return hooks
    # Imported here to keep `import sampling` fast: this takes longer than the rest of the library.
    from importlib.metadata import entry_points  # noqa: PLC0415

    # Sorted, so that hooks run in the same order on every machine.
    for entry_point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda found: found.name):
        try:
            _register(entry_point.load(), hooks)
        except Exception as error:
            owner = entry_point.dist.name if entry_point.dist is not None else "an unknown distribution"
            raise PluginFailed(
                f"plugin {entry_point.name!r} ({entry_point.value}) of {owner} can't be loaded: {error}"
            ) from error
    return hooks


def _register(plugin: Hooks | Callable[[Hooks], Any], hooks: Hooks) -> None:
    if isinstance(plugin, Hooks):
        hooks.include(plugin)
    elif callable(plugin):
        plugin(hooks)
    else:
        raise TypeError(f"a plugin must be a Hooks object or a function of one, got {plugin!r}")
