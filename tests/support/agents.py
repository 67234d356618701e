"""Agents that call the tools of lagloss, by the official client of the protocol."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import httpx2
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent

COMMAND = (sys.executable, "-m", "lagloss_server.cli.main", "mcp")
T = TypeVar("T")


def environment(database_url: str, bootstrap: str = "") -> dict[str, str]:
    return {**os.environ, "LAGLOSS_DATABASE_URL": database_url, "LAGLOSS_KAFKA_BOOTSTRAP": bootstrap}


class Agent:
    """A connected agent. The client checks each document by the schema that its tool declares."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def result(self, tool: str, **arguments: Any) -> CallToolResult:
        given = {name.rstrip("_"): value for name, value in arguments.items()}
        return await self.client.call_tool(tool, given)

    async def document(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.result(tool, **arguments)
        assert not result.is_error, result
        document: dict[str, Any] = result.structured_content
        return document

    async def error(self, tool: str, **arguments: Any) -> str:
        result = await self.result(tool, **arguments)
        assert result.is_error, result
        (content,) = result.content
        assert isinstance(content, TextContent)
        return content.text


@asynccontextmanager
async def on_stdio(database_url: str, bootstrap: str = "", mode: str = "auto") -> AsyncIterator[Agent]:
    """An agent with a `lagloss mcp` of its own."""
    program, *words = COMMAND
    parameters = StdioServerParameters(command=program, args=words, env=environment(database_url, bootstrap))
    async with Client(stdio_client(parameters), mode=mode) as client:
        yield Agent(client)


@asynccontextmanager
async def on_http(url: str, headers: dict[str, str], mode: str = "auto") -> AsyncIterator[Agent]:
    """An agent of the dashboard at this address."""
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield Agent(client)


def run(act: Callable[[], Awaitable[T]]) -> T:
    return anyio.run(act)
