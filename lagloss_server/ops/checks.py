"""One finding of `lagloss doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Verdict = Literal["ok", "warn", "fail"]
TIMEOUT_S: Final = 5.0
"""For one answer of a server."""


@dataclass(frozen=True)
class Check:
    """Finding of one check; `what_to_do` is empty if nothing is wrong."""

    name: str
    verdict: Verdict
    finding: str
    what_to_do: str = ""
