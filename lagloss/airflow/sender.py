"""The way of reports to the collector: a bounded queue, and a thread that never holds its host up.

Airflow runs each task in a process of its own that ends with it, so `flush` waits for the queue to empty, for a bounded
time. A report that cannot be sent is dropped in the end: a task is worth more than its report.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
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

    def send(self, reports: Sequence[Report]) -> None:
        """Post reports once for each token, whose pipeline takes what is its own.

        Raises:
            OSError: the collector cannot be reached, or refuses them (HTTPError).
        """
        body = json.dumps({"reports": list(reports)}).encode()
        for token in self.tokens:
            self.ask("/v1/task-runs", token, body)

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


class ReportSender:
    """Sends reports in the order in which they are put, from a thread of the process that put them."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._pid = -1
        self._has_failed = False
        self.dropped = 0
        """Reports that were never sent: there were too many, or they were refused."""

    def put(self, report: Report) -> None:
        """Take a report, without waiting; the oldest goes where too many wait."""
        self._start()
        while True:
            try:
                self._waiting.put_nowait(report)
                return
            except queue.Full:
                self._drop_oldest()

    def flush(self, timeout_s: float = FLUSH_S) -> bool:
        """Wait until all that was put is sent or dropped; return whether it is. Gives up after `timeout_s`."""
        if self._pid != os.getpid():
            return True
        deadline = time.monotonic() + timeout_s
        while self._waiting.unfinished_tasks and time.monotonic() < deadline:
            self._wanted.set()  # a retry is not put off while somebody waits
            time.sleep(0.01)
        return not self._waiting.unfinished_tasks

    def _start(self) -> None:
        """Begin anew in each process: threads do not survive a fork, nor do locks that they held."""
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()
        self._waiting: queue.Queue[Report] = queue.Queue(MAX_WAITING)
        self._wanted = threading.Event()
        threading.Thread(target=self._work, name="lagloss-airflow", daemon=True).start()

    def _work(self) -> None:
        while True:
            together = [self._waiting.get()]
            with suppress(queue.Empty):
                while len(together) < MAX_TOGETHER:
                    together.append(self._waiting.get_nowait())
            self._send(together)
            for _ in together:
                self._waiting.task_done()

    def _send(self, reports: Sequence[Report]) -> None:
        pause_s = RETRY_S
        while True:
            try:
                self._collector.send(reports)
            except urllib.error.HTTPError as error:
                error.close()
                self._complain(error)
                if error.code in PERMANENT:
                    self.dropped += len(reports)
                    return
            except Exception as error:
                self._complain(error)
            else:
                self._has_failed = False
                return
            self._wanted.wait(pause_s)
            if self._wanted.is_set():  # the host waits: not too often, and not for long
                time.sleep(RETRY_S / 5)
                self._wanted.clear()
            pause_s = min(LONGEST_RETRY_S, 2 * pause_s)

    def _drop_oldest(self) -> None:
        try:
            self._waiting.get_nowait()
        except queue.Empty:
            return
        self._waiting.task_done()
        self.dropped += 1

    def _complain(self, error: Exception) -> None:
        """Log the first failure of several in a row."""
        if not self._has_failed:
            log.warning("cannot send reports of task runs to %s: %s", self._collector.url, error)
        self._has_failed = True
