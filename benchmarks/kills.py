"""`kill -9` of `lagloss up`, again and again: whether the next start succeeds by itself, and how long it takes.

`python -m benchmarks.kills [ROUNDS] [SEED]` prints a line per round, and the times at the end. A round kills the `up`
that runs, at a random moment; in half of them its broker was killed, or stopped, up to 3 s before. In every third round
a start is killed half-way, too. The next start is measured until all answer: its wait for what was left is in it.
"""

from __future__ import annotations

import json
import math
import os
import random
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, Literal, Self

from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.ops.processes import launcher, pid_path_of

BOUND_S: Final = 60.0
READY_S: Final = 240.0
"""A start that takes longer has failed, whatever the machine is at."""
RUNNING_S: Final = 10.0
STARTING_S: Final = 20.0
BROKER_S: Final = 3.0
FIRST_STARTS: Final = 5
"""Starts on an empty directory that are killed half-way before the rounds begin."""

Broker = Literal["running", "killed", "stopped"]


@dataclass(frozen=True)
class Round:
    """One kill and the start after it."""

    broker: Broker
    started_s: float | None
    """How far a start came that was killed, too; None: there was none."""
    ready_s: float

    def __str__(self) -> str:
        half = "" if self.started_s is None else f", a start killed after {self.started_s:.1f} s"
        return f"broker {self.broker}{half}: ready after {self.ready_s:.1f} s"


class Up:
    """A `lagloss up` on a data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._began = time.monotonic()
        self.ready_s = math.nan
        """From its start to its line of endpoints."""
        self.data_dir = data_dir
        self.log_path = data_dir.with_name(f"{data_dir.name}.log")
        words = [sys.executable, "-P", "-m", "lagloss_server.cli.main", "up", "--json", "--data-dir", str(data_dir)]
        env = {**os.environ, "LAGLOSS_KAFKA_BOOTSTRAP": "", "LAGLOSS_DATABASE_URL": ""}
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen([*launcher(), *words], stdout=subprocess.PIPE, stderr=log, env=env)

    def ready(self, timeout_s: float = READY_S) -> dict[str, str]:
        """Wait for the line of endpoints. Raises RuntimeError with the log's end if there is none."""
        stdout = self.process.stdout
        assert stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            line = stdout.readline() if selector.select(timeout_s) else b""
        if not line:
            raise RuntimeError(f"no ready line: {self.said[-2000:]}")
        self.ready_s = time.monotonic() - self._began
        line_values: dict[str, str] = json.loads(line)
        return line_values

    @property
    def said(self) -> str:
        """Everything that each `up` on this directory printed to stderr."""
        return self.log_path.read_text(errors="replace")

    @property
    def broker(self) -> int:
        """Process of the broker."""
        return int(pid_path_of(self.data_dir / "kafka" / "node-1" / "kafka.log").read_text().split()[0])

    def kill(self) -> None:
        self.process.kill()
        self._wait()

    def end(self, timeout_s: float = 60) -> int:
        """Ask it to end; return its exit code."""
        self.process.terminate()
        return self._wait(timeout_s)

    def _wait(self, timeout_s: float | None = None) -> int:
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self._wait(60)


def kill_again_and_again(up: Up, rounds: int, chance: random.Random) -> Iterator[Round]:
    """Kill an `up` that runs, and each that follows it; yield each round once its start is ready, and end the last.

    Raises RuntimeError if a start fails."""
    data_dir = up.data_dir
    try:
        for number in range(rounds):
            time.sleep(chance.uniform(0, RUNNING_S))
            broker: Broker = "running" if number % 2 else chance.choice(("killed", "stopped"))
            if broker != "running":
                os.kill(up.broker, signal.SIGKILL if broker == "killed" else signal.SIGSTOP)
                time.sleep(chance.uniform(0, BROKER_S))
            up.kill()
            started_s = None
            if number % 3 == 0:
                started_s = chance.uniform(0, STARTING_S)
                up = Up(data_dir)
                time.sleep(started_s)
                up.kill()
            up = Up(data_dir)
            up.ready()
            yield Round(broker, started_s, up.ready_s)
    finally:
        if up.process.poll() is None:
            up.end()


def main() -> None:
    """Run the rounds that the command line asks for; fail if a start took too long."""
    arguments = [int(word) for word in sys.argv[1:]]
    rounds, seed = [*arguments, *(50, 1)[len(arguments) :]]
    data_dir = Path(tempfile.mkdtemp(prefix="lagloss-kills-"))
    data_dir.chmod(0o711)  # PostgreSQL's own user has to pass where we are root
    chance, took = random.Random(seed), []
    for _ in range(FIRST_STARTS):
        half = Up(data_dir)
        time.sleep(chance.uniform(0, STARTING_S))
        half.kill()
    with Up(data_dir) as first:
        first.ready()
    up = Up(data_dir)
    try:
        up.ready()
        print(f"undisturbed: ready after {up.ready_s:.1f} s, the first time after {first.ready_s:.1f} s", flush=True)
        for round_s in kill_again_and_again(up, rounds, chance):
            took.append(round_s.ready_s)
            print(f"{len(took):3} {round_s}", flush=True)
    finally:
        if took:
            print(f"{len(took)} starts: {min(took):.1f} s, median {median(took):.1f} s, at most {max(took):.1f} s")
        if len(took) == rounds:  # else its logs say why
            EmbeddedPostgres.remove(data_dir / "postgres")
            shutil.rmtree(data_dir, ignore_errors=True)
            up.log_path.unlink()
    if max(took) > BOUND_S:
        sys.exit(f"a start took longer than {BOUND_S:.0f} s")


if __name__ == "__main__":
    main()
