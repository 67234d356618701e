"""A network that reaches only given addresses, whatever a host is called, and only until a deadline."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable, Sequence
from typing import Any

import httpcore2

from lagloss_server.net.deadline import Deadline


class PinnedNetwork(httpcore2.NetworkBackend):
    """Connects to the first of these addresses that takes the connection. The TLS check stays that of the name."""

    def __init__(self, addresses: Sequence[str], deadline: Deadline) -> None:
        self._addresses = addresses
        self._deadline = deadline
        self._network = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        """Try the addresses with an equal share of the time left each, so that a silent one leaves some for the
        next."""
        failed: Exception = httpcore2.ConnectError("no address to connect to")
        for tried, address in enumerate(self._addresses):
            share_s = self._deadline.left_s() / (len(self._addresses) - tried)
            try:
                stream = self._network.connect_tcp(address, port, share_s, local_address, socket_options)
                return _TimedStream(stream, self._deadline)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failed = error
        raise failed


class _TimedStream(httpcore2.NetworkStream):
    """A connection each of whose steps may take what is left until the deadline: limits on single steps would let an
    answer that comes a byte a second take for ever."""

    def __init__(self, stream: httpcore2.NetworkStream, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.left_s())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # not the stream's own: it begins its time anew with each part that could be written
        connection: socket.socket = self._stream.get_extra_info("socket")
        try:
            while buffer:
                connection.settimeout(self._deadline.left_s())
                buffer = buffer[connection.send(buffer) :]
        except TimeoutError:
            raise
        except OSError as error:
            raise httpcore2.WriteError(str(error)) from error

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        stream = self._stream.start_tls(ssl_context, server_hostname, self._deadline.left_s())
        return _TimedStream(stream, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
