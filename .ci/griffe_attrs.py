"""Show the fields of attrs classes as the parameters of their constructors, and members of private base classes."""

import copy
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path

import griffe

DECORATORS = ("attrs.frozen", "attrs.define", "attrs.mutable", "attr.frozen", "attr.define")
REFERENCE = run_path(str(Path(__file__).with_name("reference.py")))


class AttrsExtension(griffe.Extension):
    """Change the classes of the package after all of them are loaded, because fields are inherited."""

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """Add the constructors and the members, and simplify the attributes."""
        public = {pkg.modules_collection[entry].canonical_path for entry in REFERENCE["entries"]()}
        classes = list(_classes(pkg))
        for cls in classes:
            _add_constructor(cls)
        for cls in classes:
            _add_members_of_private_bases(cls, public)
        for cls in classes:
            for member in cls.members.values():
                if member.is_attribute:
                    _simplify(member)
            _hide_plain_parameters(cls)


def _classes(found: griffe.Module | griffe.Class) -> Iterator[griffe.Class]:
    for member in found.members.values():
        if member.is_alias:
            continue
        if member.is_class:
            yield member
        if member.is_module or member.is_class:
            yield from _classes(member)


def _decorator(cls: griffe.Class) -> str:
    """Return the attrs decorator of a class, or an empty text."""
    return next((str(d.value) for d in cls.decorators if str(d.value).startswith(DECORATORS)), "")


def _add_constructor(cls: griffe.Class) -> None:
    """Add an `__init__` that is made of the fields, unless the class has one of its own."""
    if not _decorator(cls) or "__init__" in cls.members:
        return
    fields: dict[str, griffe.Parameter] = {}
    for one in [*reversed(cls.mro()), cls]:
        for parameter in _fields(one):
            fields.pop(parameter.name, None)
            fields[parameter.name] = parameter
    # attrs lets keyword-only fields come before others, a signature does not.
    ordered = sorted(fields.values(), key=lambda field: field.kind is griffe.ParameterKind.keyword_only)
    parameters = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword), *ordered]
    init = griffe.Function("__init__", parameters=griffe.Parameters(*parameters), returns="None")
    init.labels.add("synthesized")
    cls.set_member("__init__", init)


def _fields(cls: griffe.Class) -> Iterator[griffe.Parameter]:
    """Yield the fields that a class defines itself."""
    decorator = _decorator(cls)
    if not decorator:
        return
    for member in cls.members.values():
        if not member.is_attribute or member.annotation is None or "property" in member.labels:
            continue
        if "ClassVar" in str(member.annotation) or "init=False" in str(member.value):
            continue
        if "class-attribute" in member.labels and "instance-attribute" not in member.labels:
            continue
        only = "kw_only=True" in decorator or "kw_only=True" in str(member.value)
        kind = griffe.ParameterKind.keyword_only if only else griffe.ParameterKind.positional_or_keyword
        default = _default(member) if _is_field_call(member) else member.value
        yield griffe.Parameter(member.name.lstrip("_"), annotation=member.annotation, kind=kind, default=default)


def _simplify(member: griffe.Attribute) -> None:
    """Show the default of a field, and neither the code of an assignment in `__init__` nor where it is."""
    if _is_field_call(member):
        member.value = _default(member)
    if "instance-attribute" in member.labels and "class-attribute" not in member.labels:
        member.value = None
    member.labels -= {"class-attribute", "instance-attribute"}


def _hide_plain_parameters(cls: griffe.Class) -> None:
    """Remove attributes without a docstring that are parameters of the constructor: its signature has them."""
    init = cls.members.get("__init__")
    if not isinstance(init, griffe.Function):
        return
    for name in {parameter.name for parameter in init.parameters}:
        member = cls.members.get(name)
        if member is not None and member.is_attribute and member.docstring is None:
            cls.del_member(name)


def _is_field_call(member: griffe.Attribute) -> bool:
    return str(member.value).startswith(("attrs.field(", "field("))


def _default(member: griffe.Attribute) -> object:
    """Return the default in a call of `attrs.field`, or None if it has none."""
    for argument in getattr(member.value, "arguments", []):
        if getattr(argument, "name", "") == "default":
            return argument.value
        if getattr(argument, "name", "") == "factory":
            return f"{argument.value}()"
    return None


def _add_members_of_private_bases(cls: griffe.Class, public: set[str]) -> None:
    """Copy the public members of base classes that have no entry of their own."""
    for base in cls.mro():
        if base.canonical_path in public:
            continue
        for name, member in base.members.items():
            if name.startswith("_") or name in cls.members or member.is_alias:
                continue
            inherited = copy.copy(member)
            inherited.parent = cls
            cls.members[name] = inherited
