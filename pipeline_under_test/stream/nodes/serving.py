"""A node that is asked over HTTP: its application on a listening socket that several processes of it may share."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from typing import Final

import uvicorn
from fastapi import FastAPI

from lagloss_server.ops.processes import LOOPBACK
from pipeline_under_test.harness.beat import EVERY_S, Beat
from pipeline_under_test.stream.settings import ReferenceSettings

BACKLOG: Final = 2048
DRAIN_S: Final = 0.5
"""How long a client may take from its connection to its request, and between two requests, when a process ends."""


@contextlib.asynccontextmanager
async def beating(settings: ReferenceSettings) -> AsyncIterator[None]:
    """Show a beat for as long as the event loop goes round."""
    beat = Beat(settings.beats_dir)

    async def go_on() -> None:
        while True:
            beat.step()
            await asyncio.sleep(EVERY_S)

    task = asyncio.create_task(go_on())
    try:
        yield
    finally:
        task.cancel()
        beat.close()


def listening_socket(port: int = 0, *, inherited: int | None = None) -> socket.socket:
    """Return a socket that listens on this loopback port, 0 for any; or the one that this process has inherited."""
    if inherited is not None:
        return socket.socket(fileno=inherited)
    return socket.create_server((LOOPBACK, port), backlog=BACKLOG)


def url_of(listening: socket.socket) -> str:
    """Return where it is reached."""
    host, port = listening.getsockname()
    return f"http://{host}:{port}"


class DrainingServer(uvicorn.Server):
    """Server that accepts nothing more when asked to end, and finishes what it has accepted. uvicorn alone resets
    connections whose first request has not come yet, and kept ones on which another is on its way."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        self.server_state.default_headers.append((b"connection", b"close"))
        await asyncio.sleep(DRAIN_S)
        await super().shutdown(sockets)


def serve(app: FastAPI, listening: socket.socket) -> None:
    """Serve until SIGTERM. Processes that have inherited one socket accept from one queue: a connection that waits in
    it when one of them ends is accepted by another, or by its successor."""
    with listening:
        for number in (signal.SIGTERM, signal.SIGINT):
            # uvicorn raises the signal again once it has ended, and the exit code should be 0
            signal.signal(number, lambda *_: None)
        DrainingServer(uvicorn.Config(app, log_level="warning", access_log=False)).run([listening])
