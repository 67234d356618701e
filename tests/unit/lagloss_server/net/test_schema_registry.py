"""Schema registries over HTTP: what is known, unknown, refused or out of order."""

from __future__ import annotations

import base64
import json
import pickle
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lagloss.errors import BadSetting
from lagloss_server.base.errors import RegistryRefuses, RegistryUnreachable
from lagloss_server.net import schema_registry
from lagloss_server.net.http_answers import MAX_ANSWER_BYTES
from lagloss_server.net.schema_registry import (
    MAX_MISSES,
    MISS_S,
    RegisteredSchema,
    RegistryConnection,
    SchemaRegistry,
)
from tests.fakes.raw_server import drip, raw_server, request_of
from tests.support.registry_server import RegistryServer, registry_server

VARIABLE = "LAGLOSS_SCHEMA_REGISTRY_"


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as running:
        yield running


@pytest.fixture
def registry(server: RegistryServer) -> Iterator[SchemaRegistry]:
    made = SchemaRegistry(RegistryConnection(server.url), clock=lambda: now[0])
    now[0] = 0.0
    yield made
    made.close()


now = [0.0]


def test_a_schema_is_asked_for_once(server: RegistryServer, registry: SchemaRegistry) -> None:
    server.answers["/schemas/ids/1"] = 200, {"schema": '"string"'}  # without a type: Avro
    server.answers["/schemas/ids/2"] = 200, {"schema": "{}", "schemaType": "JSON"}
    for _ in range(2):
        assert registry.schema(1) == RegisteredSchema("AVRO", '"string"')
        assert registry.schema(2) == RegisteredSchema("JSON", "{}")
    assert server.asked == ["/schemas/ids/1", "/schemas/ids/2"]


def test_an_unknown_id_is_asked_for_again_after_a_while(server: RegistryServer, registry: SchemaRegistry) -> None:
    assert registry.schema(7) is None
    server.answers["/schemas/ids/7"] = 200, {"schema": '"string"'}
    now[0] = MISS_S - 0.1
    assert registry.schema(7) is None
    now[0] = MISS_S
    assert registry.schema(7) is not None
    assert server.asked == ["/schemas/ids/7"] * 2


def test_records_that_only_look_like_it_do_not_flood_the_registry(
    server: RegistryServer, registry: SchemaRegistry
) -> None:
    server.answers["/schemas/ids/1"] = 200, {"schema": '"string"'}
    assert registry.schema(1) is not None
    assert [registry.schema(id_) for id_ in range(100, 1_000)] == [None] * 900
    assert len(server.asked) == 1 + MAX_MISSES
    assert registry.schema(1) is not None
    now[0] = MISS_S
    server.answers["/schemas/ids/5000"] = 200, {"schema": '"string"'}
    assert registry.schema(5000) is not None


def test_schemas_that_others_refer_to_come_with_them_each_after_its_own(
    server: RegistryServer, registry: SchemaRegistry
) -> None:
    def reference(name: str) -> dict[str, Any]:
        return {"name": name, "subject": f"{name} /ü", "version": 3}

    place = "/subjects/{}%20%2F%C3%BC/versions/3"
    server.answers |= {
        "/schemas/ids/1": (200, {"schema": "bill", "references": [reference("money"), reference("unit")]}),
        place.format("money"): (200, {"schema": "money text", "references": [reference("unit")]}),
        place.format("unit"): (200, {"schema": "unit text", "references": []}),
    }
    found = registry.schema(1)
    assert found is not None
    assert list(found.references.items()) == [("unit", "unit text"), ("money", "money text")]
    assert len(server.asked) == 3


def test_references_in_a_circle_end(server: RegistryServer, registry: SchemaRegistry) -> None:
    loop = [{"name": "a", "subject": "a", "version": 1}]
    server.answers |= {
        "/schemas/ids/1": (200, {"schema": "x", "references": loop}),
        "/subjects/a/versions/1": (200, {"schema": "a", "references": loop}),
    }
    found = registry.schema(1)
    assert found is not None
    assert found.references == {"a": "a"}


def test_protobuf_comes_compiled_where_the_registry_can_do_so(server: RegistryServer, registry: SchemaRegistry) -> None:
    answer = {"schema": "text", "schemaType": "PROTOBUF"}
    compiled = {**answer, "schema": base64.b64encode(b"descriptor").decode()}
    for id_, serialized in (
        (1, (200, compiled)),
        (2, (200, answer)),
        (3, (422, {"error_code": 422})),
        (4, (200, {**answer, "schema": "?"})),
    ):
        server.answers[f"/schemas/ids/{id_}"] = 200, answer
        server.answers[f"/schemas/ids/{id_}?format=serialized"] = serialized
    assert registry.schema(1) == RegisteredSchema("PROTOBUF", "text", descriptor=b"descriptor")
    for id_ in (2, 3, 4):
        assert registry.schema(id_) == RegisteredSchema("PROTOBUF", "text")


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        ((500, {"error_code": 50001}), "status 500"),
        ((503, b"<html>"), "status 503"),
        ((429, {}), "status 429"),
        ((404, b"<html>no such page</html>"), "status 404"),
        ((404, {"detail": "NotFoundException: RESTEASY003210: …", "error_code": 404}), "status 404"),  # Apicurio's
        ((200, b"<html>"), "a response that is not a schema"),
        ((200, []), "a response that is not a schema"),
        ((200, {"schema": 7}), "a response that is not a schema"),
        ((200, {"schema": "x", "references": [{"name": "a"}]}), "a reference without a name, subject or version"),
    ],
)
def test_an_answer_that_is_none_is_an_outage_and_no_unknown_schema(
    server: RegistryServer, registry: SchemaRegistry, answer: tuple[int, Any], detail: str
) -> None:
    server.answers["/schemas/ids/1"] = answer
    with pytest.raises(RegistryUnreachable) as raised:
        registry.schema(1)
    assert detail in str(raised.value)
    server.answers["/schemas/ids/1"] = 200, {"schema": "x"}
    assert registry.schema(1) is not None


@pytest.mark.parametrize(
    "answer",
    [
        {"schema": "x", "schemaType": "XSD"},
        {"schema": "x", "references": [{"name": "a", "subject": "a", "version": 1}]},
    ],
)
def test_a_schema_that_no_record_can_be_read_by_holds_no_others_up(
    server: RegistryServer, registry: SchemaRegistry, answer: dict[str, Any]
) -> None:
    server.answers["/schemas/ids/1"] = 200, answer
    assert registry.schema(1) is None
    server.answers["/schemas/ids/1"] = 200, {"schema": "x"}
    now[0] = MISS_S
    assert registry.schema(1) is not None


def test_a_reference_is_found_though_its_subject_was_deleted(server: RegistryServer, registry: SchemaRegistry) -> None:
    answer = {"schema": "x", "references": [{"name": "a", "subject": "a", "version": 1}]}
    server.answers |= {
        "/schemas/ids/1": (200, answer),
        "/subjects/a/versions/1?deleted=true": (200, {"schema": "a"}),
    }
    assert registry.schema(1) == RegisteredSchema("AVRO", "x", {"a": "a"})


def test_a_number_that_no_registry_can_hold_is_no_outage(server: RegistryServer, registry: SchemaRegistry) -> None:
    for id_ in (2**31, 2**32 - 1):  # what Confluent's and Apicurio's answer to them
        server.answers[f"/schemas/ids/{id_}"] = 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        assert registry.schema(id_) is None


def test_an_answer_has_so_many_bytes_at_most_and_so_much_time(
    server: RegistryServer, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = len(json.dumps({"schema": ""}))
    server.answers["/schemas/ids/1"] = 200, {"schema": "x" * (MAX_ANSWER_BYTES - around)}
    server.answers["/schemas/ids/2"] = 200, {"schema": "x" * (MAX_ANSWER_BYTES - around + 1)}
    server.answers["/schemas/ids/3"] = 200, b"[" * MAX_ANSWER_BYTES
    assert registry.schema(1) is not None
    with pytest.raises(RegistryUnreachable, match=f"up to {MAX_ANSWER_BYTES} bytes"):
        registry.schema(2)
    with pytest.raises(RegistryUnreachable, match="not a schema"):
        registry.schema(3)
    monkeypatch.setattr(schema_registry, "TIMEOUT_S", 0.3)

    def behave(connection: socket.socket, over: threading.Event) -> None:
        request_of(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        drip(connection, over, b"x" * 1_000, 0.05)

    with raw_server(behave) as port, pytest.raises(RegistryUnreachable, match="took too long"):
        SchemaRegistry(RegistryConnection(f"http://127.0.0.1:{port}")).schema(1)


def test_schemas_that_take_too_much_room_are_asked_for_again(
    server: RegistryServer, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_registry, "MAX_KNOWN_BYTES", 10)
    for id_ in (1, 2, 3):
        server.answers[f"/schemas/ids/{id_}"] = 200, {"schema": "12345"}
    for id_ in (1, 2, 1, 2, 3, 2, 1):
        assert registry.schema(id_) is not None
    assert [int(place.rpartition("/")[2]) for place in server.asked] == [1, 2, 3, 1]


def test_a_registry_that_is_away_is_an_outage() -> None:
    with registry_server() as gone:
        url = gone.url
    with pytest.raises(RegistryUnreachable, match="Cannot query the schema registry"):
        SchemaRegistry(RegistryConnection(url)).schema(1)


@pytest.mark.parametrize("status", [401, 403])
def test_credentials_go_along_and_a_refusal_names_them_but_no_secret(server: RegistryServer, status: int) -> None:
    server.answers["/schemas/ids/1"] = status, {"error_code": status}
    basic = RegistryConnection(server.url, username="ann", password="geheim")
    bearer = RegistryConnection(server.url, token="tok-secret")
    for connection, who in (
        (basic, "user ann"),
        (bearer, "the token"),
        (RegistryConnection(server.url), "an anonymous client"),
    ):
        with pytest.raises(RegistryRefuses, match=f"rejects {who}.*: it returned {status}") as raised:
            SchemaRegistry(connection).schema(1)
        assert not {"geheim", "tok-secret"} & set(str(raised.value).replace(":", " ").split())
        assert "secret" not in repr(connection)
        assert "geheim" not in repr(connection)
    encoded = base64.b64encode(b"ann:geheim").decode()
    assert server.authorization == [f"Basic {encoded}", "Bearer tok-secret", None]


def test_the_types_that_it_takes_are_asked_for(server: RegistryServer, registry: SchemaRegistry) -> None:
    server.answers["/schemas/types"] = 200, ["JSON", "AVRO"]
    assert registry.kinds() == ["JSON", "AVRO"]
    for answer in ((404, b"<html>"), (200, {})):
        server.answers["/schemas/types"] = answer
        with pytest.raises(RegistryUnreachable, match="it answered /schemas/types with"):
            registry.kinds()


def test_a_connection_prints_what_is_set_without_its_secrets() -> None:
    shown = RegistryConnection("http://r", "ann", "geheim", key_password="x").printable()
    assert shown == {
        "schema_registry_url": "http://r", "schema_registry_username": "ann", "schema_registry_password": "***",
        "schema_registry_key_password": "***",
    }  # fmt: skip


def test_it_travels_to_other_processes_and_asks_there_for_itself(
    server: RegistryServer, registry: SchemaRegistry
) -> None:
    server.answers["/schemas/ids/1"] = 200, {"schema": '"string"'}
    registry.schema(1)
    other = pickle.loads(pickle.dumps(registry))
    assert other.schema(1) == registry.schema(1)
    assert len(server.asked) == 2
    other.close()


def test_the_environment_describes_the_registry_of_each_cluster(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("geheim\n")
    environ = {
        f"{VARIABLE}URL": "https://registry.example.com/apis/ccompat/v7/", f"{VARIABLE}USERNAME": "ann",
        f"{VARIABLE}PASSWORD_FILE": str(secret), f"{VARIABLE}CA_LOCATION": str(secret),
        f"{VARIABLE}CLUSTER_EU_WEST_1_URL": "http://10.0.0.1:8081", f"{VARIABLE}CLUSTER_EU_WEST_1_TOKEN": "t",
    }  # fmt: skip
    assert RegistryConnection.of_environment(environ) == RegistryConnection(
        "https://registry.example.com/apis/ccompat/v7", "ann", "geheim", ca_location=str(secret)
    )
    assert RegistryConnection.of_environment(environ, "eu-west.1") == RegistryConnection(
        "http://10.0.0.1:8081", token="t"
    )
    assert RegistryConnection.of_environment({}) is None
    assert RegistryConnection.of_environment(environ, "other") is None


@pytest.mark.parametrize(
    ("variables", "problem"),
    [({"URL": "registry:8081"}, "URL is not an http"), ({"URL": "http://ann:geheim@registry"}, "URL is not an http"),
     ({"URL": "http://r", "CA_LOCATION": "/nowhere/ca.pem"}, "CA_LOCATION is /nowhere/ca.pem, which cannot be read"),
     ({"URL": "http://r", "TOKEN_FILE": "/nowhere/token"}, "TOKEN_FILE is /nowhere/token"),
     ({"URL": "http://r", "PASSWORD": "a", "PASSWORD_FILE": "b"}, "PASSWORD and")],
)  # fmt: skip
def test_a_variable_that_cannot_be_used_is_named_without_a_secret(variables: dict[str, str], problem: str) -> None:
    with pytest.raises(BadSetting, match=problem) as raised:
        RegistryConnection.of_environment({VARIABLE + name: value for name, value in variables.items()})
    assert "geheim" not in str(raised.value)


@pytest.mark.parametrize("name", ["ca_location", "certificate_location"])
def test_a_file_without_certificates_is_named(tmp_path: Path, name: str) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    connection = RegistryConnection("https://registry.example.com", **{name: str(empty)})
    with pytest.raises(BadSetting, match=f"LAGLOSS_SCHEMA_REGISTRY_{name.upper()} cannot be used"):
        SchemaRegistry(connection).schema(1)
