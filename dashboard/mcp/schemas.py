"""JSON Schemas of tools: of their arguments, and of the documents that they return."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from dashboard.mcp.answers import Completeness
from dashboard.mcp.arguments import Arguments

JsonSchema: TypeAlias = dict[str, Any]
_DEFS: Final = "#/$defs/"


def input_schema(arguments: type[Arguments]) -> JsonSchema:
    """Return the schema of a tool's arguments."""
    return arguments.model_json_schema(by_alias=True)


def output_schema(document: type) -> JsonSchema:
    """Return the schema of a tool's document with `Completeness`. The root is an object, as the protocol requires."""
    schemas, components = msgspec.json.schema_components((document, Completeness), ref_template=f"{_DEFS}{{name}}")
    root, completeness = (components[schema["$ref"].removeprefix(_DEFS)] for schema in schemas)
    return {
        **root,
        "properties": {**root["properties"], **completeness["properties"]},
        "required": [*root["required"], *completeness["required"]],
        "$defs": {name: schema for name, schema in components.items() if schema not in (root, completeness)},
    }
