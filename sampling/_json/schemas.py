"""Adapt JSON schemas to constrained decoding."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeAlias, cast

__all__ = [
    "close_objects",
    "has_finite_value",
    "inline_root",
    "is_strict",
    "recursive_references",
    "reduced_schema",
    "strict_schema",
]

Json: TypeAlias = dict[str, Any]

# The rules: https://platform.openai.com/docs/guides/structured-outputs#supported-schemas
_KEYWORDS = frozenset(
    {
        "$defs",
        "$ref",
        "additionalProperties",
        "anyOf",
        "const",
        "description",
        "enum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "items",
        "maxItems",
        "maximum",
        "minItems",
        "minimum",
        "multipleOf",
        "pattern",
        "properties",
        "required",
        "title",
        "type",
    }
)
_FORMATS = frozenset({"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"})
# Keywords that only narrow the values may be left out, because the answer is validated. They move to descriptions.
_TOLD = ("minLength", "maxLength", "uniqueItems", "minProperties", "maxProperties", "contains", "format")
_SILENT = frozenset(
    {"$comment", "$id", "$schema", "default", "deprecated", "discriminator", "examples", "readOnly", "writeOnly"}
)
_NULL: Json = {"type": "null"}
_MAX_DEPTH = 10
_MAX_PROPERTIES = 5_000
_MAX_ENUM_VALUES = 1_000
_MAX_CHARS = 120_000
"""The most characters of all names of properties and definitions, and of all values of enums and constants."""

# Keywords that decide which values fit. All others are notes, such as those of pydantic's `json_schema_extra`.
_DECIDING = frozenset(
    {
        "additionalItems",
        "allOf",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "not",
        "oneOf",
        "patternProperties",
        "prefixItems",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
        "$anchor",
        "$dynamicAnchor",
        "$dynamicRef",
        "definitions",
    }
)


def close_objects(schema: Any) -> Any:
    """Return a copy of a schema whose objects allow no properties that it does not name."""
    if isinstance(schema, list):
        return [close_objects(item) for item in cast("list[object]", schema)]
    if not isinstance(schema, Mapping):
        return schema
    node: Json = {name: close_objects(value) for name, value in cast("Json", schema).items()}
    if isinstance(node.get("properties"), dict) and node.get("type", "object") == "object":
        node.setdefault("additionalProperties", False)
    return node


def strict_schema(schema: Mapping[str, Any]) -> Json | None:
    """
    Return an equivalent schema for strict mode, or None if there is none.

    Fields with a default become required and may be null. Tuples become arrays. Constraints that strict mode does not
    know move to the description.
    """
    strict = _strict(deepcopy(inline_root(schema)))
    return strict if is_strict(strict) else None


def inline_root(schema: Mapping[str, Any]) -> Json:
    """Return a schema without a reference at the root, as recursive types have it."""
    root = dict(schema)
    if "$ref" in root:
        found = root.get("$defs", {}).get(str(root["$ref"]).rpartition("/")[2])
        if isinstance(found, dict):
            del root["$ref"]
            # A copy, because a rewrite in one place must not change the other.
            root = {**deepcopy(cast("Json", found)), **root}
    return root


def _strict(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    node = cast("Json", node)
    _merge_all_of(node)
    if "oneOf" in node:
        node["anyOf"] = node.pop("oneOf")
    if "prefixItems" in node:
        _tuple_as_array(node)
    _make_inner_strict(node)
    if isinstance(node.get("properties"), dict):
        _require_all(node)
    _tell_in_words(node)
    for name in [name for name in node if name not in _KEYWORDS and name not in _DECIDING]:
        del node[name]
    return _without_siblings_of_ref(node)


def _make_inner_strict(node: Json) -> None:
    for name in ("$defs", "properties"):
        if isinstance(node.get(name), dict):
            node[name] = {key: _strict(value) for key, value in node[name].items()}
    if isinstance(node.get("anyOf"), list):
        node["anyOf"] = [_strict(variant) for variant in node["anyOf"]]
    if isinstance(node.get("items"), dict):
        node["items"] = _strict(node["items"])


def _merge_all_of(node: Json) -> None:
    """Merge an `allOf` of one schema into its parent."""
    parts = node.get("allOf")
    if isinstance(parts, list) and len(cast("list[object]", parts)) == 1 and isinstance(parts[0], dict):
        del node["allOf"]
        for name, value in cast("Json", parts[0]).items():
            node.setdefault(name, value)


def _tuple_as_array(node: Json) -> None:
    variants: list[Any] = []
    for item in node.pop("prefixItems"):
        if item not in variants:
            variants.append(item)
    node["items"] = variants[0] if len(variants) == 1 else {"anyOf": variants}


def _require_all(node: Json) -> None:
    node.setdefault("additionalProperties", False)
    required = node.get("required", [])
    for name, value in node["properties"].items():
        if name not in required:
            node["properties"][name] = _nullable(value)
    node["required"] = list(node["properties"])


def _nullable(node: Json) -> Json:
    variants = node.get("anyOf")
    if isinstance(variants, list):
        return node if _NULL in variants else {**node, "anyOf": [*cast("list[object]", variants), _NULL]}
    description = {"description": node["description"]} if "description" in node else {}
    return {"anyOf": [{name: value for name, value in node.items() if name != "description"}, _NULL], **description}


def reduced_schema(schema: Mapping[str, Any], keywords: Collection[str]) -> Json:
    """
    Return a schema with these keywords only that every answer to the given one fits.

    A `const` becomes an enum, of texts and numbers only. Properties that refer to what is around them are optional.
    Constraints that are left out move to the description.
    """
    root = deepcopy(inline_root(schema))
    for name, references in recursive_references(root).items():
        _free(root if name == "#" else root["$defs"][name.rpartition("/")[2]], references)
    return cast("Json", _reduced(root, keywords))


def recursive_references(schema: Mapping[str, Any]) -> dict[str, set[str]]:
    """Return the recursive definitions, each with the references that lead back to it."""
    root = {name: node for name, node in schema.items() if name != "$defs"}
    nodes: Json = {"#": root, **{f"#/$defs/{name}": node for name, node in schema.get("$defs", {}).items()}}
    refers = {name: set(_references(node)) for name, node in nodes.items()}
    found = {name: {one for one in refers[name] if name in _reached({one}, refers)} for name in nodes}
    return {name: references for name, references in found.items() if references}


def _reached(targets: set[str], refers: Mapping[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = set(targets)
    while waiting:
        name = waiting.pop()
        reached.add(name)
        waiting |= refers.get(name, set()) - reached
    return reached


def _references(node: object) -> Iterable[str]:
    if isinstance(node, Mapping):
        fields = cast("Json", node)
        if isinstance(reference := fields.get("$ref"), str):
            yield reference
        for value in fields.values():
            yield from _references(value)
    elif isinstance(node, list):
        for item in cast("list[object]", node):
            yield from _references(item)


def _reduced(node: Any, keywords: Collection[str]) -> Any:
    if not isinstance(node, dict):
        return node
    node = cast("Json", node)
    _merge_all_of(node)
    if "const" in node and "const" not in keywords:
        node["enum"] = [node.pop("const")]
    _split_enum(node)
    for name in ("$defs", "properties"):
        if isinstance(node.get(name), dict):
            node[name] = {key: _reduced(value, keywords) for key, value in node[name].items()}
    for name in ("anyOf", "oneOf", "prefixItems"):
        if isinstance(node.get(name), list):
            node[name] = [_reduced(variant, keywords) for variant in node[name]]
    for name in ("items", "additionalProperties"):
        node.update({name: _reduced(node[name], keywords)} if name in node else {})
    _tell_in_words(node, [name for name in node if name not in keywords and name not in _SILENT])
    return _without_siblings_of_ref(node)


def _split_enum(node: Json) -> None:
    """Leave texts and numbers in an enum, and describe other values by their types."""
    values = node.get("enum")
    if not isinstance(values, list):
        return
    given = cast("list[object]", values)
    listed = [value for value in given if isinstance(value, str | int | float) and not isinstance(value, bool)]
    others = {"boolean": any(isinstance(value, bool) for value in given), "null": None in given}
    if not any(others.values()):
        return
    del node["enum"]
    node.pop("type", None)
    variants: list[Json] = [{"enum": listed}] if listed else []
    variants += [{"type": name} for name, is_there in others.items() if is_there]
    node.update(variants[0] if len(variants) == 1 else {"anyOf": variants})


def _free(node: object, references: set[str]) -> None:
    """Make properties optional that lead to one of these references."""
    if isinstance(node, list):
        for item in cast("list[object]", node):
            _free(item, references)
    if not isinstance(node, dict):
        return
    fields = cast("Json", node)
    properties, required = fields.get("properties"), fields.get("required")
    if isinstance(properties, dict) and isinstance(required, list):
        inside = cast("Json", properties)
        names = cast("list[str]", required)
        fields["required"] = [name for name in names if references.isdisjoint(_references(inside.get(name)))]
    for value in fields.values():
        _free(value, references)


def _tell_in_words(node: Json, names: Sequence[str] | None = None) -> None:
    if names is None:
        names = [name for name in _TOLD if name in node and not (name == "format" and node[name] in _FORMATS)]
    told = [f"{name}: {node.pop(name)}" for name in names]
    if told:
        node["description"] = " ".join([*([node["description"]] if "description" in node else []), *told])
    for name in _SILENT:
        node.pop(name, None)


def _without_siblings_of_ref(node: Json) -> Json:
    # Strict mode allows siblings of anyOf, but not of $ref. Inlining would not end for a recursive type.
    if "$ref" in node and len(node) > 1 and "$defs" not in node:
        return {"anyOf": [{"$ref": node.pop("$ref")}], **node}
    return node


def is_strict(schema: object) -> bool:
    """Return whether OpenAI's strict mode accepts a schema."""
    if not isinstance(schema, Mapping):
        return False
    root = cast("Json", schema)
    if root.get("type") != "object" or "anyOf" in root:
        return False
    if not _is_strict_node(root, 0):
        return False
    names, values = _names_and_values(root)
    sizes = (len(names), len(values), sum(map(len, names)) + sum([len(str(value)) for value in values]))
    return all(size <= limit for size, limit in zip(sizes, _LIMITS, strict=True))


_LIMITS = (_MAX_PROPERTIES, _MAX_ENUM_VALUES, _MAX_CHARS)


def _is_strict_node(schema: object, depth: int) -> bool:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return False
    node = cast("Json", schema)
    if not _KEYWORDS.issuperset(node) or not any(name in node for name in ("type", "anyOf", "$ref", "enum", "const")):
        return False
    if node.get("format", "date") not in _FORMATS or ("$ref" in node and len(node) > 1 and "$defs" not in node):
        return False
    if not _is_strict_object(node) or ("array" in _types(node) and "items" not in node):
        return False
    inner = [*node.get("properties", {}).values(), *node.get("anyOf", ())]
    inner += [node["items"]] if "items" in node else []
    deeper = depth + ("properties" in node)
    return all(_is_strict_node(one, deeper) for one in inner) and all(
        _is_strict_node(one, 0) for one in node.get("$defs", {}).values()
    )


def _types(node: Json) -> list[object]:
    kinds = node.get("type", [])
    return cast("list[object]", kinds) if isinstance(kinds, list) else [kinds]


def _is_strict_object(node: Json) -> bool:
    if "object" not in _types(node) and "properties" not in node:
        return True
    properties = cast("Json", node.get("properties", {}))
    return node.get("additionalProperties") is False and properties.keys() == set(node.get("required", ()))


def _names_and_values(schema: Json) -> tuple[list[str], list[object]]:
    """Return the names of all properties and definitions, and all values of enums and constants."""
    names: list[str] = []
    values: list[object] = []
    waiting: list[Json] = [schema]
    while waiting:
        node = waiting.pop()
        named = {**node.get("properties", {}), **node.get("$defs", {})}
        names += named
        values += [*node.get("enum", ()), *([node["const"]] if "const" in node else ())]
        waiting += [*named.values(), *node.get("anyOf", ()), *([node["items"]] if "items" in node else ())]
    return names, values


def has_finite_value(schema: Json) -> bool:
    """Return whether any finite value matches. None does if objects must contain themselves."""
    definitions: Json = schema.get("$defs", {})
    finite: set[str] = set()
    while more := {name for name, node in definitions.items() if name not in finite and _is_finite(node, finite)}:
        finite |= more
    return _is_finite(schema, finite)


def _is_finite(node: Any, finite: set[str]) -> bool:
    """Return whether a node has a value that contains no definition but those that are known to have one."""
    if not isinstance(node, dict):
        return True
    fields = cast("Json", node)
    if "$ref" in fields:
        return str(fields["$ref"]).rpartition("/")[2] in finite
    for union in ("anyOf", "oneOf"):
        if union in fields and not any(_is_finite(option, finite) for option in fields[union]):
            return False
    properties = fields.get("properties", {})
    inside = [properties[name] for name in fields.get("required", ()) if name in properties]
    inside += fields.get("prefixItems", []) if fields.get("minItems") else []
    inside += [fields.get("items")] if fields.get("minItems") and "prefixItems" not in fields else []
    return all(_is_finite(part, finite) for part in inside)
