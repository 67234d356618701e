"""Clients of col-service that note what it has promised them."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from types import TracebackType
from typing import Any, Self

import httpx2


class Clients:
    """So many threads that send events while the block lasts, some one by one and some in batches.

    `accepted` holds the ids that were answered `accepted`, `statuses` counts the answers; 0 stands for none.
    """

    def __init__(self, url: str, threads: int = 4, batch: int = 10, pause_s: float = 0.0) -> None:
        self.accepted: set[str] = set()
        self.statuses: Counter[int] = Counter()
        self._url = f"{url}/events"
        self._pause_s = pause_s
        self._ended = threading.Event()
        sizes = [1 if number % 2 else batch for number in range(threads)]
        self._threads = [threading.Thread(target=self._send, args=(size,)) for size in sizes]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _send(self, size: int) -> None:
        with httpx2.Client(timeout=30) as client:
            while not self._ended.wait(self._pause_s):
                events = [click() for _ in range(size)]
                try:
                    answer = client.post(self._url, json=events if size > 1 else events[0])
                except httpx2.TransportError:
                    self.statuses[0] += 1
                    self._ended.wait(0.02)  # nobody is there: killed a moment ago
                    continue
                self.statuses[answer.status_code] += 1
                self.accepted.update(item["event_id"] for item in answer.json()["accepted"])


def click() -> dict[str, Any]:
    """An event as a client sends it."""
    return {"event_id": str(uuid.uuid4()), "url": "https://shop.example/cart", "kind": "Click"}
