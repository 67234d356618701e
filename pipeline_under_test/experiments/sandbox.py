"""A broker and a folder for one experiment, gone when it is over."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lagloss.embedded.kafka import EmbeddedKafka
from lagloss.topics import create_topics


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Kafka at `bootstrap`, with lagloss's topics; `folder` is empty."""

    bootstrap: str
    folder: Path


@contextmanager
def sandbox() -> Iterator[Sandbox]:
    """Starts an embedded broker, and ends it."""
    with (
        tempfile.TemporaryDirectory(prefix="pipeline-experiment-") as folder,
        EmbeddedKafka(Path(folder) / "kafka") as kafka,
    ):
        create_topics(kafka.bootstrap)
        yield Sandbox(kafka.bootstrap, Path(folder) / "pipelines")
