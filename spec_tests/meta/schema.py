"""As much of JSON Schema as report.schema.json uses, so that a test needs no other package."""

from collections.abc import Iterator
from typing import Any

TYPES = {
    "null": type(None), "boolean": bool, "number": (int, float), "integer": int, "string": str, "array": list,
    "object": dict,
}  # fmt: skip

KEYWORDS = {
    "$schema", "$defs", "$ref", "title", "description", "type", "const", "enum", "anyOf", "required", "properties",
    "additionalProperties", "items", "minimum",
}  # fmt: skip


def problems(data: Any, schema: dict[str, Any]) -> list[str]:
    """Say where data does not fit the schema."""
    return list(_problems(data, schema, schema, "$"))


def _problems(data: Any, schema: dict[str, Any], root: dict[str, Any], path: str) -> Iterator[str]:
    assert set(schema) <= KEYWORDS, f"this check knows no {set(schema) - KEYWORDS}"
    if "$ref" in schema:
        yield from _problems(data, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, path)
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not any(_is(data, name) for name in types):
            yield f"{path}: {data!r:.60} is not {' or '.join(types)}"
            return
    if "const" in schema and data != schema["const"]:
        yield f"{path}: {data!r:.60} is not {schema['const']!r}"
    if "enum" in schema and data not in schema["enum"]:
        yield f"{path}: {data!r:.60} is not one of {schema['enum']}"
    if "minimum" in schema and data < schema["minimum"]:
        yield f"{path}: {data} is less than {schema['minimum']}"
    if "anyOf" in schema and all(list(_problems(data, part, root, path)) for part in schema["anyOf"]):
        yield f"{path}: {data!r:.60} fits none of the forms it may have"
    if isinstance(data, dict):
        known = schema.get("properties", {})
        yield from (f"{path}: lacks {name}" for name in schema.get("required", ()) if name not in data)
        for name, value in data.items():
            part = known.get(name, schema.get("additionalProperties", {}))
            if part is False:
                yield f"{path}: {name} is not foreseen"
            else:
                yield from _problems(value, part, root, f"{path}.{name}")
    if isinstance(data, list) and "items" in schema:
        for index, value in enumerate(data):
            yield from _problems(value, schema["items"], root, f"{path}[{index}]")


def _is(data: Any, name: str) -> bool:
    if isinstance(data, bool):
        return name == "boolean"
    return isinstance(data, TYPES[name])
