"""Faults on purpose: what they are, and when they hold, in a file that grows and which every process reads.

How they are written is each pipeline's own. A line of the file is ``{"fault": TEXT, "from_ms": …, "until_ms": …}``, or
``{"end_ms": …}``, which ends at that time all that were begun before. For faults of single events these are *event*
times: an event that is processed again meets the same fate, however much later that is. For faults of processes and
servers they are times of the wall clock.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Final

from pipeline_under_test.harness.ledger import FollowedFile

LEAD_S: Final = 1.0
"""A fault begins so long after it is asked for: every process has seen it by then."""
LOOK_EVERY_S: Final = 0.2
FOREVER_MS: Final = 1 << 53
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m)")
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0}


class BadFault(ValueError):
    """An invalid fault; the message gives what was expected and what was found."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, as its text says."""

    kind: str
    text: str
    node: str = ""
    """Where: a node, a vendor (`receiver`, `refuse`), or empty."""
    share: float = 1.0
    to: str | None = None
    """The link's other end."""
    seconds: float = 0.0
    """How long, how often, or how far ahead."""
    number: float = 0.0
    """A broker's number, or a factor."""
    answer: str = ""
    """Answer of the receiver: a status, or `slow`, `timeout`, `reset`, `partial`."""


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault and when it holds: epoch ms, `until_ms` not included."""

    fault: Fault
    from_ms: int = 0
    until_ms: int = FOREVER_MS

    def holds(self, at_ms: float) -> bool:
        return self.from_ms <= at_ms < self.until_ms


class Injections:
    """The faults in a file, as it grows; `parse` reads their texts."""

    def __init__(self, path: Path, parse: Callable[[str], Fault]) -> None:
        self.path: Final = path
        self._parse = parse
        self._file = FollowedFile(path)
        self._next_look = 0.0
        self._known: tuple[Injection, ...] = ()

    def known(self) -> tuple[Injection, ...]:
        """Return all faults that were ever asked for, in that order; a new tuple only where the file has grown. Cheap:
        the file is looked at each 0.2 s at most."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + LOOK_EVERY_S
            self._read_on()
        return self._known

    def holding(self, kind: str, now_ms: float) -> list[Injection]:
        """Return the faults of a kind that hold now."""
        return [injection for injection in self.known() if injection.fault.kind == kind and injection.holds(now_ms)]

    def add(self, fault: Fault, for_s: float | None = None, in_s: float = LEAD_S) -> Injection:
        """Request a fault that begins in `in_s` and lasts `for_s` (None: until `end_all`)."""
        from_ms = int((time.time() + in_s) * 1000)
        injection = Injection(fault, from_ms, FOREVER_MS if for_s is None else from_ms + int(for_s * 1000))
        self._write([injection])
        return injection

    def begin_anew(self, faults: Iterable[Fault]) -> None:
        """End the faults of an earlier run, and request those that hold at any time."""
        if self.path.exists():
            self.end_all()
        self._write(Injection(fault) for fault in faults)

    def end_all(self) -> None:
        """End all faults that have begun or are about to."""
        self._append(json.dumps({"end_ms": time.time_ns() // 1_000_000}) + "\n")

    def _write(self, injections: Iterable[Injection]) -> None:
        self._append(
            "".join(
                json.dumps(
                    {"fault": injection.fault.text, "from_ms": injection.from_ms, "until_ms": injection.until_ms}
                )
                + "\n"
                for injection in injections
            )
        )

    def _append(self, text: str) -> None:
        if not text:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab", buffering=0) as file:
            file.write(text.encode())
            os.fsync(file.fileno())

    def _read_on(self) -> None:
        lines = self._file.new_lines()
        if not lines:
            return
        injections = list(self._known)
        for line in lines:
            entry = json.loads(line)
            if "fault" in entry:
                injections.append(Injection(self._parse(entry["fault"]), entry["from_ms"], entry["until_ms"]))
            else:
                injections = [
                    replace(injection, until_ms=min(injection.until_ms, entry["end_ms"])) for injection in injections
                ]
        self._known = tuple(injections)


def naming_the_text(parse: Callable[[str], Fault]) -> Callable[[str], Fault]:
    """Decorate a parser of faults: its BadFault ends with the text that was found."""

    @wraps(parse)
    def parse_or_name(text: str) -> Fault:
        try:
            return parse(text)
        except BadFault as problem:
            raise BadFault(f"{problem} in {text!r}") from None

    return parse_or_name


def hits(salt: bytes, message_id: str, share: float) -> bool:
    """Return True for this share of the ids: with the same salt always the same ones."""
    digest = hashlib.blake2b(salt + message_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def share_of(text: str) -> float:
    """Return a share above 0 and at most 1. Raises BadFault."""
    value = _number(text)
    if not 0 < value <= 1:
        raise BadFault(f"expected a share above 0 and at most 1, found {text!r}")
    return value


def factor_of(text: str) -> float:
    """Return a factor above 0 and at most 1000. Raises BadFault."""
    value = _number(text)
    if not 0 < value <= 1000:
        raise BadFault(f"expected a factor above 0 and at most 1000, found {text!r}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def seconds_of(text: str) -> float:
    """Return a duration in seconds. Raises BadFault."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise BadFault(f"expected a duration such as 250ms, 2s or 5m, found {text!r}")
    return float(match[1]) * _UNIT_S[match[2]]
