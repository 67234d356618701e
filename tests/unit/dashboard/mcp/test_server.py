"""The protocol as an agent's client speaks it: tools with schemas, error results for whatever is wrong, no crash."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypedDict

import anyio
import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp import Client, MCPError
from mcp.types import CallToolResult, TextContent

from dashboard.mcp.answers import MAX_BYTES, Answer
from dashboard.mcp.arguments import OneMessage, OptionalPipeline
from dashboard.mcp.server import create_server
from dashboard.mcp.tools import TOOLS, Tool
from dashboard.queries.services import Services
from lagloss.errors import UsageError
from lagloss.wire.format import hash_id
from lagloss_server.base.settings import Settings
from lagloss_server.store import audit
from lagloss_server.store.store import Store

NAMES = {"list_pipelines", "windows", "incidents", "blame", "trace_message", "groups", "report"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KNOWN_NAMES = ("pipeline", "from", "to", "window", "message_id", "verdict", "text")


class Document(TypedDict):
    """What the tools of these tests return."""

    items: list[str]


def tool(name: str, read: Any, arguments: type = OptionalPipeline) -> Tool[Any]:
    return Tool(name, name, "A tool.", arguments, Document, read, "Ask for less.")


def fail(error: Exception) -> Any:
    def read(_services: Services, _arguments: Any) -> Answer:
        raise error

    return read


class Notes:
    """An engine that keeps what would be written to the audit trail."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    @asynccontextmanager
    async def client(self, *tools: Tool[Any]) -> AsyncIterator[Client]:
        services = Services(Store("postgresql://127.0.0.1:1/none"), Settings())
        try:
            async with Client(create_server(services, tools or TOOLS)) as client:
                yield client
        finally:
            services.threads.close()

    def call(self, tool: Tool[Any], arguments: dict[str, Any]) -> CallToolResult:
        async def called() -> CallToolResult:
            async with self.client(tool) as client:
                return await client.call_tool(tool.name, arguments)

        return anyio.run(called)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notes]:
    kept = Notes()

    class Connection:
        def __enter__(self) -> Connection:
            return self

        def __exit__(self, *_: object) -> None: ...

    class Engine:
        def begin(self) -> Connection:
            return Connection()

    def note(_: Connection, action: str, target: str, pipelines: Any = (), **detail: Any) -> None:
        kept.entries.append({"action": action, "tool": target, "pipelines": list(pipelines), **detail})

    monkeypatch.setattr(Store, "engine", Engine())
    monkeypatch.setattr(audit, "note", note)
    return kept


def text_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def test_every_tool_has_schemas_of_objects_and_is_marked_as_read_only(notes: Notes) -> None:
    async def listed() -> Any:
        async with notes.client() as client:
            return await client.list_tools()

    answer = anyio.run(listed)
    assert {each.name for each in answer.tools} == NAMES
    assert len(answer.model_dump_json(by_alias=True, exclude_none=True)) < MAX_BYTES
    for each in answer.tools:
        for schema in (each.input_schema, each.output_schema):
            jsonschema.Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object"
        assert {"left_out", "narrow"} <= set(each.output_schema["required"])
        assert each.input_schema["additionalProperties"] is False
        assert each.annotations.read_only_hint is True


def test_a_tool_answers_with_its_document_structured_and_as_text(notes: Notes) -> None:
    result = notes.call(tool("list", lambda *_: Answer({"items": ["ä"]})), {"pipeline": "orders"})
    assert result.structured_content == {"items": ["ä"], "left_out": [], "narrow": None}
    assert text_of(result) == '{"items":["ä"],"left_out":[],"narrow":null}'
    assert notes.entries == [{"action": "mcp.call", "tool": "list", "pipelines": ["orders"]}]


def test_a_message_is_noted_by_the_hash_of_its_id_and_by_nothing_where_ids_are_hidden(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"pipeline": "orders", "message_id": "secret-id", "window": "-5m"}
    traced = tool("trace", lambda *_: Answer({"items": []}), OneMessage)
    notes.call(traced, asked)
    monkeypatch.setattr(Store, "may_see_ids", lambda *_: False)
    notes.call(traced, asked)
    shown, hidden = notes.entries
    entry = {"action": "mcp.call", "tool": "trace", "pipelines": ["orders"], "window": "-5m"}
    assert shown == {**entry, "id_hash": f"{hash_id('secret-id'):016x}"}
    assert hidden == entry


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (UsageError(detail="expected a, found b"), "expected a, found b"),
        (UsageError(detail="x" * 1_000_000), "x"),
        (ZeroDivisionError("a secret"), "Internal error: ZeroDivisionError; see the log of the server."),
    ],
)
def test_an_error_of_a_tool_is_an_error_result(notes: Notes, error: Exception, expected: str) -> None:
    result = notes.call(tool("fails", fail(error)), {})
    assert result.is_error
    assert text_of(result).startswith(expected)
    assert "secret" not in text_of(result)
    assert len(text_of(result)) < 5_000


def test_without_a_database_arguments_are_checked_and_nothing_is_shown() -> None:
    read = tool("list", lambda *_: Answer({"items": ["shown"]}))
    wrong, away = Notes().call(read, {"pipeline": 5}), Notes().call(read, {})
    assert text_of(wrong) == "Bad arguments. pipeline: expected text, found 5"
    assert text_of(away) == "PostgreSQL did not respond. Try again later."
    assert wrong.is_error
    assert away.is_error


def test_a_tool_that_is_not_there_is_an_error_of_the_protocol_and_the_next_call_is_answered(notes: Notes) -> None:
    async def calls() -> CallToolResult:
        async with notes.client(tool("list", lambda *_: Answer({"items": []}))) as client:
            with pytest.raises(MCPError, match="expected one of list, found 'nope'"):
                await client.call_tool("nope", {})
            return await client.call_tool("list", {})

    assert not anyio.run(calls).is_error


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.data())
def test_wrong_arguments_are_an_error_result_that_says_what_was_expected(notes: Notes, data: st.DataObject) -> None:
    asked = data.draw(st.lists(st.dictionaries(st.sampled_from(KNOWN_NAMES) | st.text(), JSON, max_size=4), max_size=4))

    async def calls() -> list[tuple[Tool[Any], dict[str, Any], CallToolResult]]:
        tools = [tool(each.name, lambda *_: Answer({"items": []}), each.arguments) for each in TOOLS]
        async with notes.client(*tools) as client:
            return [(each, args, await client.call_tool(each.name, args)) for each in tools for args in asked]

    for each, arguments, result in anyio.run(calls):
        assert set(arguments) <= set(KNOWN_NAMES) or result.is_error
        if result.is_error:
            assert "expected" in text_of(result), (each.name, arguments)
