"""JSON responses that routes declare by their return annotations."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import numpy as np
import pytest
from fastapi import APIRouter, FastAPI, Response
from fastapi.testclient import TestClient
from msgspec import Struct, defstruct

from lagloss_server.net import problem_details as problems
from lagloss_server.net.responses import Json, JsonRoute, encode, json_content, schema_of


class Colour(enum.StrEnum):
    RED = "red"


class Wheel(Struct):
    size: float


class Seat(TypedDict):
    row: int
    is_taken: NotRequired[bool]


@dataclass(frozen=True, slots=True)
class Bus:
    name: str
    wheels: tuple[Wheel, ...]
    seats: list[Seat]
    colours: dict[Colour, int]


BUS = Bus("a", (Wheel(1.5),), [{"row": 1}], {Colour.RED: 2})


class Tram(Struct):
    line: int


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI(openapi_url="/openapi.json")
    problems.install(app, "the test")
    routes = APIRouter(route_class=JsonRoute)

    @routes.get("/buses", responses=problems.documented(404))
    async def buses() -> Json[list[Bus]]:
        return Json([BUS])

    @routes.get("/any")
    async def any_vehicle(is_tram: bool = False) -> Json[Bus] | Json[Tram]:
        if is_tram:
            return Json(Tram(1))
        return Json(BUS)

    @routes.get("/file", responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}})
    async def file() -> Json[Bus] | Response:
        return Response("a,b", media_type="text/csv")

    @app.put("/bus", status_code=201)
    async def put() -> Json[Bus]:
        return Json(BUS, 201)

    app.include_router(routes)
    return app


def schema(app: FastAPI, method: str, path: str, status: str = "200", kind: str = "application/json") -> Any:
    return app.openapi()["paths"][path][method]["responses"][status]["content"][kind]["schema"]


def test_a_route_declares_what_its_annotation_says(app: FastAPI) -> None:
    assert schema(app, "get", "/buses") == {"type": "array", "items": {"$ref": "#/components/schemas/Bus"}}
    assert schema(app, "put", "/bus", "201") == {"$ref": "#/components/schemas/Bus"}
    assert schema(app, "get", "/file") == {"$ref": "#/components/schemas/Bus"}
    assert schema(app, "get", "/file", kind="text/csv") == {"type": "string"}
    assert [part["$ref"] for part in schema(app, "get", "/any")["anyOf"]] == [
        f"#/components/schemas/{name}" for name in ("Bus", "Tram")
    ]
    assert schema(app, "get", "/buses", "404", "application/problem+json") == {
        "$ref": "#/components/schemas/ProblemDocument"
    }


def test_the_document_has_the_structures_that_its_routes_refer_to_and_no_others(app: FastAPI) -> None:
    schema_of(defstruct("Unused", [("a", int)]))
    schemas = app.openapi()["components"]["schemas"]
    assert {"Bus", "Wheel", "Seat", "Tram", "ProblemDocument"} <= schemas.keys()
    assert "Unused" not in schemas
    assert schemas["Seat"]["required"] == ["row"]
    assert [schemas[name]["additionalProperties"] for name in ("Bus", "Wheel", "Seat")] == [False] * 3
    assert app.openapi()["components"]["schemas"] == schemas


def test_values_are_sent_as_their_fields(app: FastAPI) -> None:
    client = TestClient(app)
    bus = {"name": "a", "wheels": [{"size": 1.5}], "seats": [{"row": 1}], "colours": {"red": 2}}
    answer = client.get("/buses")
    assert (answer.json(), answer.headers["content-type"]) == ([bus], "application/json")
    assert client.get("/any", params={"is_tram": True}).json() == {"line": 1}
    assert client.put("/bus").status_code == 201
    assert client.get("/file").text == "a,b"
    assert client.get("/any", params={"is_tram": "x"}).headers["content-type"] == "application/problem+json"


def test_numbers_of_numpy_are_numbers_and_other_values_are_refused() -> None:
    assert encode({"lag": np.float64(1.5), "none": float("nan")}) == b'{"lag":1.5,"none":null}'
    assert Json.encoded(encode(BUS)).body == Json(BUS).body
    with pytest.raises(NotImplementedError, match="object"):
        encode([object()])


def test_two_structures_of_one_name_are_refused() -> None:
    json_content(Tram)
    with pytest.raises(ValueError, match="Tram"):
        schema_of(defstruct("Tram", [("number", str)]))
