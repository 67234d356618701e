"""The heartbeat: a URL outside that is fetched once a minute while the canary is right, so that its silence is noticed
even if nothing of lagloss is left to notify anybody. Another URL gets the reason when it stops, and each other reason.
"""

from __future__ import annotations

import re
import threading
import time
from email.utils import parsedate_to_datetime
from typing import Final

import httpx2
import structlog

from canary.metrics import CanaryMetrics
from canary.sender import PAUSED_S, boot_s
from lagloss_server.net.http_answers import BOUNDED

EVERY_S: Final = 60.0
RETRY_S: Final = 10.0
"""After a request that failed."""
TIMEOUT_S: Final = 10.0
VALID_S: Final = 90.0
"""What the witness said holds for so long: while it hangs, nothing is fetched. If it is known why it says nothing, that
is a failure from then on."""
SILENT_S: Final = 240.0
"""A witness that has said nothing for so long is a failure of its own."""
LOOK_S: Final = 0.5
CLOCK_OFF_S: Final = 120.0
"""A wall clock that differs by more than this from the receiver's is wrong."""
CLOCK_KNOWN_S: Final = 600.0
"""A receiver that has not said its time for so long gets a heartbeat, whose response says it."""

_log = structlog.get_logger("lagloss.canary")


class Heartbeat:
    """Requests from a thread of its own. `say` is what the witness tells it; without URLs it does nothing.

    Args:
        url: fetched once a minute while the canary is right; empty: never.
        fail_url: gets a POST with the reason once it is not right any more; empty: none.
    """

    def __init__(self, url: str, fail_url: str, metrics: CanaryMetrics) -> None:
        self._url = url
        self._fail_url = fail_url
        self._metrics = metrics
        self._problem: str | None = None
        """Why the canary is not right; empty if it is; None: nothing can be said."""
        self._trouble = ""
        """Why nothing was said since; empty: that is unknown."""
        self._said_s = self._turned_s = self._compared_s = boot_s()
        """When something was said, when the last turn began, and when the clocks were compared."""
        self._clock_problem = ""
        """Why this host's clock is wrong, by the only one that is outside of lagloss; empty if it is right."""
        self._failures: set[str] = set()
        """What the failure's URL knows, since all was right."""
        self._ok_due_s = self._fail_due_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._client = httpx2.Client(timeout=TIMEOUT_S, follow_redirects=True, event_hooks=BOUNDED)

    def start(self) -> None:
        if self._url or self._fail_url:
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def say(self, problem: str | None, now_s: float | None = None) -> None:
        """Note why the canary is not right: empty if it is, None if nothing can be said, as by a stand-by. `now_s`: by
        `boot_s`, which is the default."""
        self._problem, self._said_s = problem, boot_s() if now_s is None else now_s
        self._trouble = ""

    def note_trouble(self, why: str) -> None:
        """Note why nothing can be said for now. It is a failure once what was said does not hold any more."""
        self._trouble = why

    def is_ok(self) -> bool:
        """Return whether the canary is right, by a word that still holds."""
        return self._problem == "" and boot_s() - self._said_s <= VALID_S

    def turn(self, now_s: float) -> None:
        """Request what is due at `now_s`, by `boot_s`."""
        was_paused = now_s - self._turned_s > PAUSED_S
        if was_paused and self._said_s <= self._turned_s:  # the witness was paused, too: its silence says nothing
            self.say(None, now_s)
        self._turned_s = now_s
        problem = self._problem_at(now_s)
        if problem == "" and self._clock_problem and now_s >= self._ok_due_s:
            self._ok_due_s = now_s + EVERY_S
            self._ask_the_time(now_s)
        if problem is None:
            return
        problem = problem or self._clock_problem
        if not problem:
            self._failures.clear()
            if self._url and now_s >= self._ok_due_s:
                self._ok_due_s = now_s + (EVERY_S if self._request("ok", self._url, None, now_s) else RETRY_S)
        elif self._fail_url and (kind := _kind_of(problem)) not in self._failures and now_s >= self._fail_due_s:
            if self._request("fail", self._fail_url, problem, now_s):
                self._failures.add(kind)
            else:
                self._fail_due_s = now_s + RETRY_S

    def _problem_at(self, now_s: float) -> str | None:
        """Return why the canary is not right; empty if it is; None: nothing can be said."""
        age_s = now_s - self._said_s
        if self._trouble and age_s > (SILENT_S if self._problem is None else VALID_S):
            return self._trouble
        if self._problem == "" and age_s > SILENT_S:
            return f"the witness has said nothing for {age_s / 60:.0f} min: it hangs"
        return None if self._problem == "" and age_s > VALID_S else self._problem

    def _request(self, kind: str, url: str, reason: str | None, now_s: float) -> bool:
        try:
            if reason is None:
                response = self._client.get(url)
            else:
                response = self._client.post(url, content=reason.encode(), headers={"content-type": "text/plain"})
            response.raise_for_status()
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            status = error.response.status_code if isinstance(error, httpx2.HTTPStatusError) else type(error).__name__
            _log.warning("heartbeat_failed", kind=kind, error=str(status))  # the URL is its own password
            self._metrics.heartbeats.labels(kind, "failed").inc()
            return False
        self._metrics.heartbeats.labels(kind, "sent").inc()
        self._compare_clocks(response, now_s)
        return True

    def _ask_the_time(self, now_s: float) -> None:
        """Compare clocks without a heartbeat: any path of the receiver but that of its URL has a date, too, even if it
        redirects. Where it has none, the next heartbeat shows how late it is, so that no clock stays wrong for ever."""
        url = httpx2.URL(self._url or self._fail_url)
        try:
            self._compare_clocks(self._client.head(url.join("/"), follow_redirects=False), now_s)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            _log.warning("heartbeat_failed", kind="clock", error=type(error).__name__)
        if now_s - self._compared_s > CLOCK_KNOWN_S:
            self._clock_problem = ""

    def _compare_clocks(self, response: httpx2.Response, now_s: float) -> None:
        try:
            off_s = time.time() - parsedate_to_datetime(response.headers["date"]).timestamp()
        except (KeyError, ValueError):  # it does not say
            return
        self._compared_s = now_s
        was, self._clock_problem = self._clock_problem, ""
        if abs(off_s) > CLOCK_OFF_S:
            self._clock_problem = f"the clock of this host is {off_s / 60:+.0f} min off, by the heartbeat receiver's"
        if bool(was) != bool(self._clock_problem):
            _log.warning("clock_compared", problem=self._clock_problem)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self.turn(boot_s())
            except Exception:  # whatever it is, the next turn tries again
                _log.exception("heartbeat_turn_failed")
                self._stop.wait(RETRY_S)


def _kind_of(problem: str) -> str:
    """Return a problem without its numbers and what follows them, so that the same one of the next minute is no new
    one: `a minute was wrong: no result`."""
    return re.sub(r"[0-9]", "", ":".join(re.split("[:;]", problem)[:2]))
