"""Import every public module and name of the installed package, and print the outcomes as JSON."""

import importlib
import json
import pkgutil
import sys
import warnings

warnings.simplefilter("error")

import sampling  # noqa: E402 - warnings of its import are errors, too


def is_public(name: str) -> bool:
    """Tell whether users may import a module. Commands are run, not imported."""
    return "._" not in name and not name.startswith("sampling.cli.")


def outcome(load) -> str:
    """Return "ok", the extra that is missing, or the error."""
    try:
        load()
    except sampling.MissingExtra as missing:
        return f"extra {missing.extra}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "ok"


def names_of(module_name: str) -> list[str]:
    module = sys.modules.get(module_name)
    return [] if module is None else list(getattr(module, "__all__", ()))


found = {}
modules = [module.name for module in pkgutil.walk_packages(sampling.__path__, "sampling.", onerror=lambda _: None)]
for name in ["sampling", *modules]:
    if is_public(name):
        found[name] = outcome(lambda name=name: importlib.import_module(name))
        for public in names_of(name):
            found[f"{name}:{public}"] = outcome(lambda name=name, public=public: getattr(sys.modules[name], public))
json.dump({"file": sampling.__file__, "version": sampling.__version__, "found": found}, sys.stdout)
