"""A node that is asked over HTTP: its application on a loopback port that several processes of it may share."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from typing import Final

import uvicorn
from fastapi import FastAPI

from lagloss.processes import LOOPBACK
from pipeline_under_test.nodes.beat import EVERY_S, Beat
from pipeline_under_test.settings import Settings

BACKLOG: Final = 2048


@contextlib.asynccontextmanager
async def beating(settings: Settings) -> AsyncIterator[None]:
    """Shows a beat for as long as the event loop goes round."""
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


def serve(app: FastAPI, port: int) -> None:
    """Serves until SIGTERM. Connections are spread by the kernel over the processes that listen on this port."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind((LOOPBACK, port))
        listening.listen(BACKLOG)
        for number in (signal.SIGTERM, signal.SIGINT):
            # uvicorn raises the signal again once it has ended, and the exit code should be 0
            signal.signal(number, lambda *_: None)
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run([listening])
