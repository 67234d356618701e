"""The protocol's server: lists the tools, checks arguments, audits each call, and turns errors into results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog
from mcp.server import Server, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp.types import Tool as ToolDocument

import lagloss
from dashboard.mcp.answers import JsonObject, as_text, fitted
from dashboard.mcp.arguments import Arguments
from dashboard.mcp.schemas import input_schema, output_schema
from dashboard.mcp.tools import TOOLS, Tool
from dashboard.queries.services import Services
from lagloss.errors import LaglossError, UsageError
from lagloss_server.base.fields import describe
from lagloss_server.model.message_ids import hashes_of
from lagloss_server.store import audit
from lagloss_server.store.engine import AWAY

_MAX_ERROR: Final = 4_000
"""Characters of an error: one that names an unknown pipeline lists all others."""
_INSTRUCTIONS: Final = (
    "lagloss measures per minute how late a pipeline's data is and whether messages were lost. Start with "
    "`list_pipelines`; `windows` with verdict `loss` finds the minutes that lost messages, and the places; `blame` "
    "names the messages and what they have in common; `trace_message` follows one of them. A loss is an interval: "
    "`min` messages are lost for certain, `max` cannot be ruled out. Pending and unknown are not lost. Times are UTC. "
    "`left_out` says what was cut from an answer, and `narrow` how to ask for it."
)
_log = structlog.get_logger("lagloss.mcp")


def create_server(services: Services, tools: Sequence[Tool[Any]] = TOOLS) -> Server[Any]:
    """Return the server of these tools. `services`: with a store that reads what the caller may see."""
    calls = _Calls(services, {tool.name: tool for tool in tools})
    listed = ListToolsResult(tools=[_tool_document(tool) for tool in tools])

    async def list_tools(_: ServerRequestContext[Any], _page: PaginatedRequestParams | None) -> ListToolsResult:
        return listed

    async def call_tool(_: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        return await calls.result(params.name, params.arguments or {})

    return Server(
        "lagloss",
        version=lagloss.__version__,
        title="lagloss",
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


@dataclass(frozen=True, slots=True)
class _Calls:
    """Calls of tools by their names."""

    services: Services
    tools: Mapping[str, Tool[Any]]

    async def result(self, name: str, given: Mapping[str, object]) -> CallToolResult:
        """Return the document of a tool, or an error result.

        Raises:
            MCPError: no tool has this name, which is an error of the protocol.
        """
        tool = self.tools.get(name)
        if tool is None:
            expected = ", ".join(self.tools)
            raise MCPError(INVALID_PARAMS, f"Unknown tool: expected one of {expected}, found {describe(name)}")
        try:
            document = await self._document(tool, given)
        except LaglossError as error:
            return _failure(str(error))
        except AWAY as error:
            _log.warning("tool_failed", tool=name, error=type(error).__name__)
            return _failure("PostgreSQL did not respond. Try again later.")
        except Exception as error:  # a bug harms this call alone
            _log.exception("tool_failed", tool=name)
            return _failure(f"Internal error: {type(error).__name__}; see the log of the server.")
        return CallToolResult(content=[TextContent(text=as_text(document))], structured_content=document)

    async def _document(self, tool: Tool[Any], given: Mapping[str, object]) -> JsonObject:
        threads = self.services.threads
        try:
            arguments = tool.arguments.parse(given)
        except UsageError as error:
            with suppress(*AWAY):  # nothing is shown: what was wrong is the better answer
                await threads.read(_note_refused, self.services, tool, str(error))
            raise
        await threads.read(_note_call, self.services, tool, arguments)
        read = threads.read_log if tool.reads_log else threads.read
        return await read(lambda: fitted(tool.read(self.services, arguments), tool.narrow))


def _note_call(services: Services, tool: Tool[Any], arguments: Arguments) -> None:
    """Add a call to the audit trail; the message by the hash of its id, unless ids are hidden from the caller."""
    values = arguments.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    message_id, pipeline = values.pop("message_id", None), values.pop("pipeline", None)
    if pipeline is not None and message_id is not None and services.store.may_see_ids(pipeline):
        values["id_hash"] = f"{hashes_of(message_id)[-1]:016x}"
    with services.store.unscoped.engine.begin() as connection:
        audit.note(connection, "mcp.call", tool.name, [] if pipeline is None else [pipeline], **values)


def _note_refused(services: Services, tool: Tool[Any], problem: str) -> None:
    with services.store.unscoped.engine.begin() as connection:
        audit.note(connection, "mcp.call", tool.name, problem=problem[:_MAX_ERROR])


def _tool_document(tool: Tool[Any]) -> ToolDocument:
    return ToolDocument(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=input_schema(tool.arguments),
        output_schema=output_schema(tool.document),
        annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
    )


def _failure(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text[:_MAX_ERROR])], is_error=True)
