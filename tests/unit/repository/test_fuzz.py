"""What fuzzing has found, and where it begins; see tests/fuzz."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from tests.fuzz.__main__ import FOUND
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_takes_its_seeds(name: str) -> None:
    target = TARGETS[name]
    assert target.seeds
    for seed in target.seeds:
        target.parse(seed)


@pytest.mark.parametrize("file", sorted(FOUND.glob("*/*")), ids=lambda file: f"{file.parent.name}-{file.name}")
@pytest.mark.timeout(10)
def test_what_fuzzing_has_found_raises_nothing_that_is_not_declared(file: Path) -> None:
    target = TARGETS[file.parent.name]
    with suppress(*target.allowed):
        target.parse(file.read_bytes())
