"""TLS in front of a PostgreSQL: the embedded build has none of its own, so this ends it, as a company's proxy does."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SSL_REQUEST = bytes.fromhex("0000000804d2162f")
"""What libpq sends first to ask for TLS; `S` is the answer of one who speaks it."""


@contextmanager
def tls_front(port: int, certificate: Path, key: Path) -> Iterator[int]:
    """The port of a listener on loopback that speaks TLS, and hands on what comes to `port`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):  # the listener was closed
                while True:
                    client = listener.accept()[0]
                    threading.Thread(target=_serve, args=(client, context, port), daemon=True).start()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def _serve(client: socket.socket, context: ssl.SSLContext, port: int) -> None:
    with contextlib.suppress(OSError), client:
        if client.recv(8, socket.MSG_WAITALL) != SSL_REQUEST:
            return  # no TLS is wanted, or another kind of it
        client.sendall(b"S")
        with (
            context.wrap_socket(client, server_side=True) as inside,
            socket.create_connection(("127.0.0.1", port)) as server,
        ):
            back = threading.Thread(target=_pump, args=(server, inside), daemon=True)
            back.start()
            _pump(inside, server)
            back.join(10)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
