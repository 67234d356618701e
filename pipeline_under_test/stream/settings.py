"""Settings of every process of the reference pipeline: a file in its data directory, written once at start."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from pydantic import ConfigDict, Field

from pipeline_under_test.harness.data_folder import DataFolder
from pipeline_under_test.harness.faults import Injections
from pipeline_under_test.harness.ledger import Ledger
from pipeline_under_test.stream.event_faults import Faults
from pipeline_under_test.stream.faults import parse
from pipeline_under_test.stream.topology import ALL_CONSUMERS, CONSUMERS, PIPELINE, TIERS_S

FILE: Final = "pipeline.json"

Retry = Literal["global", "local", "everything"]
"""Policy of a connector for events that its vendor refuses: see `pipeline_under_test.stream.nodes.connector`."""


class NotThere(RuntimeError):
    """The directory has no pipeline; the message gives the next step."""


class ReferenceSettings(DataFolder):
    """Where Kafka is, what the pipeline is called (topics and groups begin with it), and how its nodes go about it."""

    model_config = ConfigDict(frozen=True)

    bootstrap: str = ""
    pipeline: str = PIPELINE
    seed: int = 0
    """Seed of faults and traffic."""
    receiver_url: str = ""
    collector_url: str = ""
    """URL of col-service."""
    database_url: str = ""
    """postgresql://… of the database in which the warehouse stores clicks; empty: the pipeline has no warehouse."""
    commit_first: bool = False
    """The warehouse commits what it reads before it stores it: the bad example of a sink."""
    exactly_once: bool = False
    """event-norm works in transactions."""
    at_most_once: bool = False
    """event-norm commits what it reads before it does it: the bad example."""
    shadow: bool = False
    """A second event-norm runs beside production, on trial: it reads real traffic, and its output is not delivered."""
    taps: bool = False
    """The nodes send no beacons: lagloss reads their topics and commits. What they filter goes to a topic, too."""
    batch: int = Field(100, ge=1)
    """Events in one request of a connector, at most."""
    parallel: int = Field(4, ge=1)
    """Requests of a connector under way at a time."""
    retry: Retry = "global"
    tiers_s: tuple[float, ...] = TIERS_S
    """How long the global retrier keeps an event before its first, second, ... return, in seconds."""
    schema_path: Path | None = None
    """The schema that col-service writes events with, if not the packaged one."""

    def shadow_settings(self) -> ReferenceSettings:
        """Return the settings of the shadow, which is in all but its input a pipeline of its own, PIPELINE-shadow.

        Consumer group, producer, topics, dead-letter queue, ledger, and definition for lagloss (shadow.yaml) are its
        own. So production is not touched by it, whatever it does; it waits for it neither at the start nor at the end.
        """
        own = {"pipeline": f"{self.pipeline}-shadow", "data_dir": self.data_dir / "shadow", "database_url": ""}
        return self.model_copy(update=own)

    @property
    def consumers(self) -> tuple[str, ...]:
        """The nodes that read from Kafka."""
        return ALL_CONSUMERS if self.database_url else CONSUMERS

    def injections(self) -> Injections:
        return Injections(self.faults_path, parse)

    def faults_of(self, node: str) -> Faults:
        return Faults(node, self.injections().known, self.seed)

    def ledger_of(self, process: str) -> Ledger:
        return Ledger(self.ledger_dir, process)

    def save(self) -> None:
        """Write the file that `load` reads."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        fresh = self.data_dir / f"{FILE}.new"
        fresh.touch(mode=0o600)  # the database's URL may have a password
        fresh.write_text(self.model_dump_json(indent=1))
        fresh.replace(self.data_dir / FILE)

    @classmethod
    def load(cls, data_dir: Path) -> ReferenceSettings:
        """Return the settings of the pipeline that runs, or ran, in this directory.

        Raises:
            NotThere: if there is none.
        """
        try:
            text = (data_dir / FILE).read_text()
        except FileNotFoundError:
            raise NotThere(f"expected a pipeline in {data_dir}, found none; start one with `pipeline run`") from None
        return cls.model_validate_json(text).model_copy(update={"data_dir": data_dir})
