"""Show the fields of attrs classes as the parameters of their constructors."""

import griffe

DECORATORS = ("attrs.frozen", "attrs.define", "attrs.mutable", "attr.frozen", "attr.define")


class AttrsExtension(griffe.Extension):
    """Give each attrs class an `__init__` that is made of its fields."""

    def on_class(self, *, cls: griffe.Class, **_: object) -> None:
        """Add the parameters, unless the class has an `__init__` of its own."""
        decorator = next((d for d in cls.decorators if str(d.value).startswith(DECORATORS)), None)
        if decorator is None or "__init__" in cls.members:
            return
        keyword_only = "kw_only=True" in str(decorator.value)
        parameters = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
        for member in cls.members.values():
            if not member.is_attribute or member.annotation is None or "property" in member.labels:
                continue
            if "ClassVar" in str(member.annotation) or "init=False" in str(member.value):
                continue
            if "class-attribute" in member.labels and "instance-attribute" not in member.labels:
                continue
            only = keyword_only or "kw_only=True" in str(member.value)
            kind = griffe.ParameterKind.keyword_only if only else griffe.ParameterKind.positional_or_keyword
            name = member.name.lstrip("_")
            parameters.append(griffe.Parameter(name, annotation=member.annotation, kind=kind, default=_default(member)))
        init = griffe.Function("__init__", parameters=griffe.Parameters(*parameters), returns="None")
        init.labels.add("synthesized")
        cls.set_member("__init__", init)


def _default(member: griffe.Attribute) -> object:
    """Return the default of a field, `...` where a factory or a converter hides it."""
    value = member.value
    if not str(value).startswith(("attrs.field(", "field(")):
        return value
    for argument in getattr(value, "arguments", []):
        if getattr(argument, "name", "") == "default":
            return argument.value
        if getattr(argument, "name", "") == "factory":
            return f"{argument.value}()"
    return None
