"""JSON responses of HTTP APIs, which routes declare by their return annotations.

A route that returns `Json[list[Tap]]` has the schema of that type in its application's OpenAPI document. mypy compares
the annotation with what the route returns, and tests compare the schema with real responses. Nothing is validated while
requests are served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import UnionType
from typing import Any, Final, Generic, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from fastapi import FastAPI, Response
from fastapi.routing import APIRoute

T = TypeVar("T")
JSON: Final = "application/json"
_COMPONENTS: Final = "#/components/schemas/"
_declared: Final[dict[str, dict[str, Any]]] = {}
"""Schemas of the structures in declared responses, by the names of their classes."""


class Json(Response, Generic[T]):
    """A response with a value in JSON: a struct, a dataclass, a typed dictionary, or a list of them."""

    media_type = JSON

    def __init__(self, value: T, status_code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(encode(value), status_code, headers)

    @classmethod
    def encoded(cls, text: bytes) -> Json[T]:
        """Return a response with a value that `encode` has encoded before."""
        return cls(cast("T", msgspec.Raw(text)))


class JsonRoute(APIRoute):
    """A route that declares each `Json[...]` of its return annotation as its response."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        types = _json_types(get_type_hints(endpoint).get("return"))
        if types:
            responses, status = options.get("responses") or {}, options.get("status_code") or 200
            others = responses.get(status, {})
            content = {**others.get("content", {}), **json_content(*types)}
            options |= {"response_model": None, "responses": {**responses, status: {**others, "content": content}}}
        super().__init__(path, endpoint, **options)


def encode(value: object) -> bytes:
    """Return a value as JSON."""
    return _ENCODER.encode(value)


def json_content(*types: Any) -> dict[str, Any]:
    """Return the content of a response in OpenAPI: a value in JSON of one of these types."""
    return {JSON: {"schema": schema_of(*types)}}


def schema_of(*types: Any) -> dict[str, Any]:
    """Return the JSON Schema of values of one of these types. Structures in it are references to components, which have
    no fields but those that are declared.

    Raises:
        ValueError: another structure of the same name has been declared.
    """
    schemas: list[dict[str, Any]] = []
    for value_type in types:  # one by one, since msgspec allows no union of structures
        (schema,), components = msgspec.json.schema_components((value_type,), ref_template=_COMPONENTS + "{name}")
        schemas.append(schema)
        for name, component in components.items():
            exact = {**component, "additionalProperties": False} if "properties" in component else component
            if _declared.setdefault(name, exact) != exact:
                raise ValueError(f"expected one structure called {name} in responses, found two")
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def declare_responses(app: FastAPI) -> None:
    """Make routes that are added from now on declare their responses, and their schemas part of /openapi.json."""
    app.router.route_class = JsonRoute
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        document = generate()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        missing = set(_references(document["paths"])) - schemas.keys()
        while missing:
            added = {name: _declared[name] for name in sorted(missing)}
            schemas |= added
            missing = set(_references(added)) - schemas.keys()
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI documents this as the way to extend it


def _json_types(annotation: Any) -> list[Any]:
    """Return what the `Json` alternatives of a return annotation hold."""
    alternatives = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return [get_args(alternative)[0] for alternative in alternatives if get_origin(alternative) is Json]


def _references(part: object) -> Iterator[str]:
    """Yield the names of the components that a part of an OpenAPI document refers to."""
    if isinstance(part, dict):
        target = part.get("$ref")
        if isinstance(target, str):
            yield target.removeprefix(_COMPONENTS)
    children = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    for child in children:
        yield from _references(child)


def _as_builtin(value: object) -> object:
    """Return a text, number or mapping of another class, such as numpy's float64, as what msgspec encodes."""
    if isinstance(value, Mapping):
        return dict(value)
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise NotImplementedError(f"{type(value).__name__} in a JSON response")


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_as_builtin)
