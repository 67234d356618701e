"""A TCP server on loopback that does to each connection what a test says, for receivers that behave badly."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def raw_server(behave: Callable[[socket.socket, threading.Event], None], host: str = "127.0.0.1") -> Iterator[int]:
    """The port. `behave` has a thread for each connection, and should end when the event is set."""
    over = threading.Event()
    threads: list[threading.Thread] = []
    listener = socket.create_server((host, 0))

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(10)
            behave(connection, over)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threads.append(threading.Thread(target=serve, args=(connection,)))
                threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield listener.getsockname()[1]
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        for thread in threads:
            thread.join()


def drip(connection: socket.socket, over: threading.Event, text: bytes, every_s: float) -> None:
    """Sends the text byte by byte."""
    for byte in text:
        connection.sendall(bytes([byte]))
        if over.wait(every_s):
            return


def request_of(connection: socket.socket) -> bytes:
    """The head of an HTTP request."""
    read = b""
    while b"\r\n\r\n" not in read:
        read += connection.recv(65_536)
    return read
