"""The outlet to a collector, for services that want no Kafka client for beacons: docs/collector.md.

Blocks and reports are the same bytes that would go to Kafka, and the collector answers with their positions in the log,
so an emitter's account is as exact as on Kafka itself.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import httpx2

from lagloss.broker.topics import BEACONS
from lagloss.sdk.outlets.kafka import METADATA_REFRESH_S, METADATA_TIMEOUT_S, RETRY_S, Outgoing
from lagloss.wire.format import BLOCKS_TYPE, REPORT_TYPE, SAMPLE_ALL

log = logging.getLogger("lagloss")

MAX_REQUEST_BYTES: Final = 512 * 1024
"""Size of blocks sent together; a longer block goes alone. Below the limit of a collector."""
MAX_REQUEST_BLOCKS: Final = 256
TIMEOUT: Final = httpx2.Timeout(15.0, connect=2.0)
"""Longer than a collector waits for its broker, so that it can answer with the cause."""
PERMANENT: Final = frozenset({400, 413, 415, 422})
"""Answers that a retry cannot change. After any other, records are retried until the collector takes them or the
emitter closes."""

_detached: Final[list[httpx2.Client]] = []


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """A request to the worker; without records, a query for partitions and sample."""

    records: tuple[Outgoing, ...] = ()

    @property
    def is_for_blocks(self) -> bool:
        return bool(self.records) and self.records[0].topic == BEACONS


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer of the collector; `status` 0 stands for none."""

    request: _Request
    status: int
    body: dict[str, Any]
    retry_after_s: float = RETRY_S


class HttpOutlet:
    """An outlet (see `lagloss.sdk.outlets.kafka.Outlet`) to a collector; one request at a time, by a thread of its own.

    Args:
        url: of the collector, `http://HOST:PORT`.
        pipeline: of the records.
        token: as created by `lagloss token create`; not needed on the collector's own machine while the pipeline has
            none.
    """

    def __init__(self, url: str, pipeline: str, token: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx2.Client(base_url=url, headers=headers, timeout=TIMEOUT)
        self._pipeline = pipeline
        self._unsent: deque[Outgoing] = deque()
        self._in_flight: _Request | None = None
        self._alone = 0
        """Number of records to send one by one: one of them is bad, and the collector did not name it."""
        self._not_before = 0.0
        self._partitions: int | None = None
        self._sample = SAMPLE_ALL
        self._asked_at = -METADATA_REFRESH_S
        self._is_failing = False
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        self.last_error: str | None = None

    # -- called by the emitter's thread ----------------------------------------------------------------------------

    def partitions(self) -> int | None:
        now = time.monotonic()
        if now - self._asked_at >= METADATA_REFRESH_S and self._in_flight is None and now >= self._not_before:
            self._hand_over(_Request())
        deadline = now + METADATA_TIMEOUT_S
        while self._partitions is None and self._in_flight is not None and time.monotonic() < deadline:
            self._listen(deadline - time.monotonic())
        return self._partitions

    def sample(self, pipeline: str) -> int:
        return self._sample

    def send(self, record: Outgoing) -> None:
        self._unsent.append(record)
        self._push()

    def poll(self, timeout_s: float) -> None:
        self._push()
        if self._in_flight is None:
            time.sleep(timeout_s)
        else:
            self._listen(timeout_s)

    def abandon(self) -> None:
        given_up = [*(self._in_flight.records if self._in_flight else ()), *self._unsent]
        self._in_flight = None
        self._unsent.clear()
        for record in given_up:
            record.done(None, -1)

    def close(self) -> None:
        self._in_flight = None
        self._requests.put(None)

    def detach_after_fork(self) -> None:
        # Its connections are the parent's: closing them here would close them there, too.
        _detached.append(self._client)
        self._in_flight = None
        self._unsent.clear()

    # -- requests -------------------------------------------------------------------------------------------------

    def _push(self) -> None:
        if self._in_flight is not None or not self._unsent or time.monotonic() < self._not_before:
            return
        self._hand_over(_Request(tuple(self._next_records())))

    def _next_records(self) -> list[Outgoing]:
        """Return a report, or as many blocks as fit into one request."""
        records = [self._unsent.popleft()]
        if self._alone or records[0].topic != BEACONS:
            self._alone = max(0, self._alone - 1)
            return records
        size = len(records[0].value)
        while self._unsent and self._unsent[0].topic == BEACONS and len(records) < MAX_REQUEST_BLOCKS:
            size += len(self._unsent[0].value)
            if size > MAX_REQUEST_BYTES:
                break
            records.append(self._unsent.popleft())
        return records

    def _hand_over(self, request: _Request) -> None:
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name="lagloss-http", daemon=True)
            self._worker.start()
        self._in_flight = request
        self._requests.put(request)

    def _listen(self, timeout_s: float) -> None:
        try:
            answer = self._answers.get(timeout=max(timeout_s, 0.001))
        except queue.Empty:
            return
        if answer.request is not self._in_flight:
            return  # the answer to an abandoned request
        self._in_flight = None
        try:
            self._take(answer)
        except (KeyError, TypeError, ValueError) as error:  # not the answer of a collector
            self._again(answer, f"expected a response of a collector: {error!r}")
        self._push()

    # -- answers --------------------------------------------------------------------------------------------------

    def _take(self, answer: _Answer) -> None:
        records = answer.request.records
        if answer.status in (200, 202):
            if not records:
                self._partitions, self._sample = int(answer.body["partitions"]), int(answer.body["sample"])
                self._asked_at = time.monotonic()
            elif answer.request.is_for_blocks:
                places = [(int(place["partition"]), int(place["offset"])) for place in answer.body["positions"]]
                for record, place in list(zip(records, places, strict=True)):
                    record.done(*place)
            else:
                records[0].done(0, 0)
            self._note_recovery()
            return
        error = f"{answer.status or 'no response'}: {answer.body.get('detail', answer.body)}"
        if answer.status in PERMANENT and records:
            self._note(error)
            self._give_up_bad(answer)
        else:
            self._again(answer, error)

    def _again(self, answer: _Answer, error: str) -> None:
        self._note(error)
        self._unsent.extendleft(reversed(answer.request.records))
        self._not_before = time.monotonic() + answer.retry_after_s

    def _give_up_bad(self, answer: _Answer) -> None:
        """Give up the only record, or else the one that the collector names; the others are sent again."""
        records = list(answer.request.records)
        position = 0 if len(records) == 1 else answer.body.get("position")  # a report's counts its tallies
        if isinstance(position, int) and 0 <= position < len(records):
            records.pop(position).done(None, -1)
        else:
            self._alone = len(records)
        self._unsent.extendleft(reversed(records))

    def _note(self, error: str) -> None:
        self.last_error = error
        if not self._is_failing:
            self._is_failing = True
            log.warning("lagloss: buffering beacons until the collector responds: %s", error)

    def _note_recovery(self) -> None:
        if self._is_failing:
            self._is_failing = False
            log.warning("lagloss: the collector responds again")

    # -- the worker's thread --------------------------------------------------------------------------------------

    def _work(self) -> None:
        with self._client:
            while (request := self._requests.get()) is not None:
                self._answers.put(self._asked(request))

    def _asked(self, request: _Request) -> _Answer:
        try:
            response = self._sent(request)
            body = response.json() if response.content else {}
            after = response.headers.get("retry-after", "")
            wait_s = float(after) if after.isdecimal() else RETRY_S
            return _Answer(request, response.status_code, body if isinstance(body, dict) else {}, wait_s)
        except Exception as error:  # without any answer the emitter would wait for ever
            return _Answer(request, 0, {"detail": f"{type(error).__name__}: {error}"})

    def _sent(self, request: _Request) -> httpx2.Response:
        if not request.records:
            return self._client.get(f"/v1/pipelines/{self._pipeline}/intake")
        values = [record.value for record in request.records]
        if request.is_for_blocks:
            framed = b"".join(len(value).to_bytes(4, "little") + value for value in values)
            return self._client.post("/v1/blocks", content=framed, headers={"Content-Type": BLOCKS_TYPE})
        return self._client.post("/v1/reports", content=values[0], headers={"Content-Type": REPORT_TYPE})
