"""Health as the age of the last finished turn of each loop of a service.

A thread that hangs raises no error, so the absence of errors says nothing. Each loop marks the end of a turn, or of a
step that shows progress; one that has marked nothing for longer than its limit is not well. Ages are monotonic: they
stand still while the machine sleeps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog

log = structlog.get_logger()

HUNG_S: Final = 1_800.0
"""After so long without a finished turn, and with servers that answer, only a restart helps."""


class WatchedLoop:
    """A loop that marks its turns; threads may share it. `limit_s`: the longest normal time between two marks."""

    def __init__(self, name: str, limit_s: float) -> None:
        self.name = name
        self.limit_s = limit_s
        self._finished_at = time.monotonic()

    @property
    def age_s(self) -> float:
        """Time since the last mark, or since the loop was made, in seconds."""
        return time.monotonic() - self._finished_at

    @property
    def problem(self) -> str | None:
        """Why the loop is unhealthy, without its name; None if it is healthy."""
        age_s = self.age_s
        return f"has not completed an iteration for {age_s:.0f} s" if age_s > self.limit_s else None

    def finished(self) -> None:
        """Mark the end of a turn, or progress within a long one."""
        self._finished_at = time.monotonic()


class ServerLoop(WatchedLoop):
    """A loop whose turn is a question to a server: it finishes with the answer, and is not well before the first."""

    def __init__(self, name: str, limit_s: float) -> None:
        super().__init__(name, limit_s)
        self._has_answered = False
        self._failure: str | None = None

    @property
    def problem(self) -> str | None:
        """As of any loop; what the last question failed with follows a ": ", since it can name hosts and users."""
        age_s = self.age_s
        if self._has_answered and age_s <= self.limit_s:
            return None
        return f"has not responded for {age_s:.0f} s{self._failure or ''}"

    def finished(self) -> None:
        if self._failure is not None:
            log.info("server responds again", server=self.name)
        super().finished()
        self._has_answered, self._failure = True, None

    def failed(self, error: Exception) -> None:
        """Note why the server did not answer; its age goes on."""
        if self._failure is None:  # /healthz tells other machines no reason
            log.warning("server check failed", server=self.name, trouble=str(error))
        first_line = (str(error) or type(error).__name__).strip().partition("\n")[0]
        self._failure = f": {first_line}"


class Turns:
    """The loops that a service runs now."""

    def __init__(self) -> None:
        self._loops: tuple[WatchedLoop, ...] = ()

    @contextmanager
    def running(self, *loops: WatchedLoop) -> Iterator[None]:
        """Count these loops in while the block lasts."""
        self._loops = (*self._loops, *loops)
        try:
            yield
        finally:
            self._loops = tuple(loop for loop in self._loops if loop not in loops)

    def unwell(self) -> list[tuple[WatchedLoop, str]]:
        """Return the loops that are not well, and why; servers' first, since the others may wait for one."""
        problems = [(loop, problem) for loop in self._loops if (problem := loop.problem) is not None]
        return sorted(problems, key=lambda item: not isinstance(item[0], ServerLoop))

    def problem(self) -> str | None:
        """Return why the service is unhealthy, for /healthz; None if it is healthy."""
        return next((f"{loop.name} {problem}" for loop, problem in self.unwell()), None)

    def problem_of(self, server: str) -> str | None:
        """Return why a server's loop is unhealthy; None if it is healthy, or the server is not watched."""
        return next((problem for loop, problem in self.unwell() if loop.name == server), None)

    def hung(self) -> str | None:
        """Return why only a restart helps, for /livez: a loop that hangs although all servers answer; else None."""
        if any(isinstance(loop, ServerLoop) for loop, _ in self.unwell()):
            return None
        age_s = max((loop.age_s for loop in self._loops), default=0.0)
        return f"no loop has made progress for {age_s:.0f} s" if age_s > HUNG_S else None
