"""The receiver of pages: keeps what it was sent, and can hang."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Page:
    """One request. `id` is the same at each attempt of a message; `kind` is opened, updated, resolved, …"""

    id: str
    incident: str
    kind: str
    at_s: float


class Receiver:
    """A webhook's server on an address of the bridge. While it hangs, it takes requests and answers none."""

    def __init__(self, address: str) -> None:
        self.pages: list[Page] = []
        self.answering = threading.Event()
        self.answering.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if not receiver.answering.is_set():
                    receiver.answering.wait(600)
                    return  # what was sent is not taken: the sender has given up long ago
                kind = body["type"].removeprefix("incident.")
                receiver.pages.append(Page(self.headers["webhook-id"], body["incident"]["id"], kind, time.time()))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer((address, 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://{address}:{self._server.server_port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.answering.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
