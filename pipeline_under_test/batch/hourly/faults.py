"""Faults of the job's tasks: one that fails in its first tries, or in all of them; a file that the tasks read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

TASKS: Final = ("aggregate", "load", "check", "publish")
_GRAMMAR: Final = re.compile(rf"task:({'|'.join(TASKS)})(?::([1-9]\d*))?")


class BadTaskFault(ValueError):
    """The text is not a valid task fault; the message names the expected syntax."""


class InjectedFailure(RuntimeError):
    """An injected failure of a task."""


@dataclass(frozen=True, slots=True)
class TaskFault:
    """`task` fails in its first `tries`, None: in all. In runs of `hour` (epoch s), None: of any."""

    task: str
    tries: int | None = None
    hour: int | None = None

    @classmethod
    def parse(cls, text: str, hour: int | None = None) -> TaskFault:
        """Read `task:NAME:TRIES`, or `task:NAME`, which fails for good.

        Raises:
            BadTaskFault: it is neither.
        """
        match = _GRAMMAR.fullmatch(text)
        if match is None:
            raise BadTaskFault(f"expected task:NAME or task:NAME:TRIES with one of {', '.join(TASKS)}, found {text!r}")
        return cls(match[1], int(match[2]) if match[2] else None, hour)

    @property
    def text(self) -> str:
        return f"task:{self.task}" + (f":{self.tries}" if self.tries else "")

    def hits(self, task: str, hour: int, number: int) -> bool:
        """Return True if this try (counted from 1) of a task fails."""
        return task == self.task and self.hour in (None, hour) and (self.tries is None or number <= self.tries)


_FAULTS: Final = TypeAdapter(tuple[TaskFault, ...])


class TaskFaults:
    """The faults in a file, which is replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def known(self) -> tuple[TaskFault, ...]:
        return _FAULTS.validate_json(self._path.read_bytes()) if self._path.exists() else ()

    def add(self, fault: TaskFault) -> None:
        self._write((*self.known(), fault))

    def lift(self, fault: TaskFault) -> None:
        """Let the task succeed from now on."""
        self._write(tuple(injection for injection in self.known() if injection != fault))

    def hitting(self, task: str, hour: int, number: int) -> TaskFault | None:
        """Return the first fault that this try of a task meets."""
        return next((fault for fault in self.known() if fault.hits(task, hour, number)), None)

    def _write(self, faults: tuple[TaskFault, ...]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        draft = self._path.with_suffix(".new")
        draft.write_bytes(_FAULTS.dump_json(faults))
        draft.replace(self._path)


def faults_of(data_dir: Path) -> TaskFaults:
    """Return the faults of the tasks of the pipeline in this directory."""
    return TaskFaults(data_dir / "task-faults.json")
