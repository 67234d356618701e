"""Brokers and a folder for one experiment, gone when it is over."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline_under_test.harness.brokers import own_brokers
from pipeline_under_test.stream.settings import ReferenceSettings


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Kafka at `bootstrap`, with lagloss's topics; `folder` is empty."""

    bootstrap: str
    folder: Path


@contextmanager
def sandbox(brokers: int = 1) -> Iterator[Sandbox]:
    """Start embedded brokers, and end them."""
    with (
        tempfile.TemporaryDirectory(prefix="pipeline-experiment-") as folder,
        own_brokers(Path(folder), ReferenceSettings(data_dir=Path(folder)).injections(), brokers) as (bootstrap, _),
    ):
        yield Sandbox(bootstrap, Path(folder) / "pipelines")
