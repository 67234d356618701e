"""What scenarios of both pipelines have in common: where they are, and the bounds of what is expected."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Final

from pydantic import AfterValidator

from lagloss_server.base.fields import Strict
from lagloss_server.ops.child_environment import PACKAGES

_PACKAGED: Final = Path(__file__).with_name("library")
DIRECTORY: Final = _PACKAGED if _PACKAGED.is_dir() else PACKAGES / "scenarios"
"""The scenarios that come with it: in the wheel beside this module, in a checkout at its top."""


def one_of(names: Collection[str], what: str = "") -> AfterValidator:
    """Return a validator of a text that has to be one of these names."""

    def check(text: str) -> str:
        if text not in names:
            raise ValueError(f"expected one of {what}{', '.join(names)}, found {text!r}")
        return text

    return AfterValidator(check)


def find_scenario(name_or_path: str) -> Path:
    """Return the path of a scenario: one of the repository's by its name, or any by its path."""
    named = DIRECTORY / f"{name_or_path}.yaml"
    return named if named.is_file() else Path(name_or_path)


class Bounds(Strict):
    """From `min` to `max`, both included."""

    min: float = 0
    max: float = math.inf

    def hold(self, value: float) -> bool:
        return self.min <= value <= self.max

    def __str__(self) -> str:
        return f"{self.min:g} to {self.max:g}" if self.max < math.inf else f"at least {self.min:g}"

    def problems(self, what: str, value: float) -> list[str]:
        """Return a sentence if the value is not within these bounds."""
        return [] if self.hold(value) else [f"expected {what}: {self}, found {value:g}"]
