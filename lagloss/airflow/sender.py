"""The way of reports to the collector: a bounded buffer, and a thread that never holds its host up.

Airflow runs each task in a process of its own that ends with it, so `flush` waits for the queue to empty, for a bounded
time. A report that cannot be sent is dropped in the end: a task is worth more than its report.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from lagloss.environment import secret
from lagloss.sdk.outlets.choice import COLLECTOR_VARIABLE, TOKEN_VARIABLE

log = logging.getLogger("lagloss.airflow")

MAX_WAITING: Final = 1_000
MAX_TOGETHER: Final = 100
TIMEOUT_S: Final = 2.0
"""For one answer of the collector."""
FLUSH_S: Final = 3.0
"""The longest that the end of a task waits for its reports."""
RETRY_S: Final = 0.5
LONGEST_RETRY_S: Final = 30.0
PERMANENT: Final = frozenset({400, 413, 415, 422})
"""Answers that sending the same again does not change."""
REFUSED: Final = PERMANENT | {401, 403}
"""Answers upon which a token's pipeline goes without the reports."""

Report = Mapping[str, Any]


class Collector:
    """A collector as the environment names it: LAGLOSS_COLLECTOR_URL, and LAGLOSS_COLLECTOR_TOKEN with a token of each
    pipeline, separated by commas."""

    def __init__(self, url: str, tokens: Sequence[str] = ()) -> None:
        self.url = url.rstrip("/")
        self.tokens = tuple(tokens) or ("",)

    @classmethod
    def of_environment(cls, environ: Mapping[str, str] | None = None) -> Collector | None:
        """Return None where no collector is named.

        Raises:
            BadSetting: the token's file cannot be read.
        """
        environ = os.environ if environ is None else environ
        url = environ.get(COLLECTOR_VARIABLE, "")
        tokens = [token.strip() for token in secret(environ, TOKEN_VARIABLE).split(",") if token.strip()]
        return cls(url, tokens) if url else None

    def send(self, reports: Sequence[Report], token: str) -> None:
        """Post reports with a token, whose pipeline takes what is its own.

        Raises:
            OSError: the collector cannot be reached, or refuses them (HTTPError).
        """
        self.ask("/v1/task-runs", token, json.dumps({"reports": list(reports)}).encode())

    def ask(self, path: str, token: str, body: bytes | None = None) -> dict[str, Any]:
        """Return the answer to a request, a POST if it has a body.

        Raises:
            OSError: no answer, or one of an error (HTTPError).
        """
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(self.url + path, body, headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            document: dict[str, Any] = json.loads(answer.read())
            return document


@dataclass(slots=True, eq=False)
class _Waiting:
    """A report that some token still has to send. `is_sent`: another has."""

    report: Report
    is_sent: bool = False


@dataclass(slots=True, eq=False)
class _Cursor:
    """The progress of a token, the `position`-th of the collector: `next_report` is the number of the first report that
    it has to send, `tried_s` the end of its last request (monotonic), `pause_s` the wait after that."""

    position: int
    token: str
    next_report: int = 0
    tried_s: float = 0.0
    pause_s: float = 0.0


class ReportSender:
    """Sends reports in the order in which they are put, from a thread of the process that put them.

    Each token has a cursor in one buffer, so that a pipeline that is away or refuses reports holds up no other.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._pid = -1
        self._failing: set[int] = set()
        """Positions of the tokens whose last answer was an error; 0 if the last request had no answer."""
        self.dropped = 0
        """Reports that waited for a token when there were too many, or that were refused with every token."""

    def put(self, report: Report) -> None:
        """Take a report, without waiting; the oldest goes where too many wait."""
        self._start()
        with self._changed:
            if len(self._waiting) >= MAX_WAITING:
                self._drop_oldest()
            self._waiting.append(_Waiting(report))
            self._changed.notify_all()

    def flush(self, timeout_s: float = FLUSH_S) -> bool:
        """Wait until all that was put is sent or dropped; return whether it is. Gives up after `timeout_s`."""
        if self._pid != os.getpid():
            return True
        with self._changed:
            self._flushing += 1  # retries come sooner while the host waits
            self._changed.notify_all()
            try:
                return self._changed.wait_for(lambda: not self._waiting, timeout_s)
            finally:
                self._flushing -= 1

    def _start(self) -> None:
        """Begin anew in each process: threads do not survive a fork, nor do locks that they held."""
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._flushing = 0
        self._waiting: deque[_Waiting] = deque()
        self._first = 0
        """The number of the oldest report that waits."""
        self._cursors = [_Cursor(position, token) for position, token in enumerate(self._collector.tokens, 1)]
        threading.Thread(target=self._work, name="lagloss-airflow", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._changed:
                cursor = self._next_cursor()
                begin = cursor.next_report - self._first
                together = list(islice(self._waiting, begin, begin + MAX_TOGETHER))
                end = cursor.next_report + len(together)
            is_sent, is_refused = self._send(cursor, [waiting.report for waiting in together])
            with self._changed:
                cursor.tried_s = time.monotonic()
                if not (is_sent or is_refused):
                    cursor.pause_s = min(LONGEST_RETRY_S, max(RETRY_S, 2 * cursor.pause_s))
                    continue
                cursor.pause_s = 0.0
                for waiting in together:
                    waiting.is_sent |= is_sent
                cursor.next_report = max(cursor.next_report, end)  # more were dropped if too many waited
                self._forget_finished()

    def _next_cursor(self) -> _Cursor:
        """Wait until a token has something to send and its pause is over. The longest idle one goes first."""
        while True:
            end = self._first + len(self._waiting)
            behind = [cursor for cursor in self._cursors if cursor.next_report < end]
            rest_s = None
            if behind:
                cursor = min(behind, key=self._due_s)
                rest_s = self._due_s(cursor) - time.monotonic()
                if rest_s <= 0:
                    return cursor
            self._changed.wait(rest_s)

    def _due_s(self, cursor: _Cursor) -> float:
        return cursor.tried_s + (min(cursor.pause_s, RETRY_S / 5) if self._flushing else cursor.pause_s)

    def _send(self, cursor: _Cursor, reports: Sequence[Report]) -> tuple[bool, bool]:
        """Post reports with a token; return whether they are sent, and whether they are refused."""
        try:
            self._collector.send(reports, cursor.token)
        except urllib.error.HTTPError as error:
            error.close()
            self._complain(error, cursor.position)
            return False, error.code in REFUSED
        except Exception as error:
            self._complain(error, 0)
            return False, False
        self._failing -= {0, cursor.position}
        return True, False

    def _forget_finished(self) -> None:
        """Forget the reports that every token has sent or given up."""
        while self._first < min(cursor.next_report for cursor in self._cursors):
            self.dropped += not self._waiting.popleft().is_sent
            self._first += 1
        if not self._waiting:
            self._changed.notify_all()

    def _drop_oldest(self) -> None:
        self._waiting.popleft()
        self._first += 1
        self.dropped += 1
        for cursor in self._cursors:
            cursor.next_report = max(cursor.next_report, self._first)

    def _complain(self, error: Exception, position: int) -> None:
        """Log the first failure of several in a row: of a token, by its position, or (0) of the collector."""
        if position not in self._failing:
            by = f" with token {position} of {len(self._collector.tokens)}" if position else ""
            log.warning("cannot send reports of task runs to %s%s: %s", self._collector.url, by, error)
        self._failing.add(position)
