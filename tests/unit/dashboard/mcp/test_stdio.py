"""The end of input: what was asked before it is answered, and then the server ends."""

from __future__ import annotations

from typing import Any

import anyio
from mcp.server import Server
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp.types import CallToolResult, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse, TextContent

from dashboard.mcp.stdio import Answers, Messages, Unanswered


def test_a_request_before_the_end_of_input_is_answered_after_it() -> None:
    async def act() -> list[Any]:
        ended = anyio.Event()

        async def call_tool(_context: Any, _params: Any) -> CallToolResult:
            await ended.wait()
            return CallToolResult(content=[TextContent(text="late")])

        return await exchange(Server("slow", on_call_tool=call_tool), [request(1, "ping"), call(2)], ended)

    assert anyio.run(act) == [1, 2]


def test_a_cancelled_request_is_not_waited_for() -> None:
    async def act() -> list[Any]:
        async def call_tool(_context: Any, _params: Any) -> CallToolResult:
            await anyio.sleep_forever()
            raise AssertionError

        cancelled = JSONRPCNotification(
            jsonrpc="2.0", method="notifications/cancelled", params={"requestId": 2, "reason": "no longer needed"}
        )
        server = Server("slow", on_call_tool=call_tool)
        return await exchange(server, [call(2), SessionMessage(cancelled), request(3, "ping")], anyio.Event())

    assert anyio.run(act) == [3]


def request(request_id: int, method: str, params: dict[str, Any] | None = None) -> SessionMessage:
    return SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=request_id, method=method, params=params))


def call(request_id: int) -> SessionMessage:
    return request(request_id, "tools/call", {"name": "slow", "arguments": {}})


async def exchange(server: Server[Any], asked: list[SessionMessage], ended: anyio.Event) -> list[Any]:
    """The ids of the answers to these messages, after which the input ends."""
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    initialized = SessionMessage(JSONRPCNotification(jsonrpc="2.0", method="notifications/initialized"))
    unanswered, answered = Unanswered(), list[Any]()
    async with create_client_server_memory_streams() as ((received, sender), (messages, answers)):

        async def serve() -> None:
            options = server.create_initialization_options()
            await server.run(Messages(messages, unanswered), Answers(answers, unanswered), options)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(serve)
                await sender.send(request(0, "initialize", hello))
                assert isinstance(await received.receive(), SessionMessage)
                for message in [initialized, *asked]:
                    await sender.send(message)
                await sender.aclose()
                ended.set()
                async for item in received:
                    assert isinstance(item, SessionMessage)
                    assert isinstance(item.message, JSONRPCResponse), item
                    answered.append(item.message.id)
    return answered
