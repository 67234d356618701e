"""A real process of one node of the reference pipeline, for tests that kill it."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lagloss_server.ops.processes import log_tail, spawn, terminate
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import COL_SERVICE, EVENT_NORM
from tests.support.closers import wait_until


@dataclass
class NodeProcess:
    """One process, started again whenever it is asked for; `words` are those of `pipeline`, without --data-dir.
    `module` is what takes them, with words of its own before."""

    settings: ReferenceSettings
    words: tuple[str, ...]
    module: tuple[str, ...] = ("pipeline_under_test",)
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        words = [sys.executable, "-m", *self.module, *self.words, "--data-dir", str(self.settings.data_dir)]
        self.process = spawn(words, self.log_path)

    @property
    def log_path(self) -> Path:
        return self.settings.log_dir / f"{'-'.join(self.words)}.log"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def await_beat(self) -> None:
        """Returns once its loop goes round."""

        def beats() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, log_tail(self.log_path, 12)
            return (self.settings.beats_dir / str(self.pid)).exists()

        wait_until(beats, 60, f"for {' '.join(self.words)}")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        assert self.process.wait() == -signal.SIGKILL

    def await_end(self) -> int:
        """Waits until it has ended by itself; its exit code."""
        assert self.process is not None
        return self.process.wait(30)

    def end(self) -> int:
        """Ends it in good order; its exit code."""
        assert self.process is not None
        return terminate(self.process, 40)


@contextmanager
def running(settings: ReferenceSettings, *words: str) -> Iterator[NodeProcess]:
    """A process of a node for as long as the block lasts: `running(settings, "node", "event-norm")`."""
    node = NodeProcess(settings, words)
    node.start()
    try:
        yield node
    finally:
        node.end()


@contextmanager
def at_commit(settings: ReferenceSettings, point: str) -> Iterator[NodeProcess]:
    """A process of event-norm that has come to a point of `tests.support.dying.node`, and is killed there at the
    end of the block."""
    marker, permit = (settings.data_dir / f"{point}-{uuid.uuid4().hex[:8]}.{name}" for name in ("marker", "permit"))
    module = ("tests.support.dying.node", point, str(marker), str(permit))
    node = NodeProcess(settings, ("node", EVENT_NORM), module)
    node.start()
    try:
        wait_until(marker.exists, 60, f"for {point}")
        yield node
        permit.touch()
        assert node.await_end() == -signal.SIGKILL
    finally:
        node.end()


@contextmanager
def col_service(settings: ReferenceSettings) -> Iterator[NodeProcess]:
    """col-service where the settings say it is."""
    port = settings.collector_url.rpartition(":")[2]
    with running(settings, COL_SERVICE, "--port", port) as node:
        yield node
