"""Settings of every process of the batch pipeline, from variables `SCORES_…`; Kafka's are the SDK's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from lagloss_server.base.instances import default_data_dir
from pipeline_under_test.batch.ledger import FactLedger
from pipeline_under_test.batch.topology import HOUR_S, PIPELINE
from pipeline_under_test.harness.data_folder import DataFolder
from pipeline_under_test.harness.ledger import new_ledger_path

ENV_PREFIX = "SCORES_"
SchemaVersion = Annotated[int, Field(ge=1, le=2)]


def _data_dir() -> Path:
    return default_data_dir() / PIPELINE


class BatchSettings(BaseSettings, DataFolder):
    """Where the services are, and how the processes go about their work."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore", env_ignore_empty=True)

    data_dir: Path = Field(default_factory=_data_dir, description="directory of ledger, faults, logs and heartbeats")
    s3_endpoint: str | None = Field(None, description="URL of S3, SNS and SQS; empty: AWS")
    database_url: str = Field("", description="postgresql://… of the pipeline's own database, not of lagloss's")
    pipeline: str = Field(PIPELINE, description="pipeline of records; prefix of bucket, topic and queues")
    tables: bool = Field(False, description="the tables are tapped, and importers report no record as imported")
    seed: int = Field(0, description="random seed of faults and events")

    span_s: int = Field(HOUR_S, ge=60, multiple_of=60, description='length of an "hour" in seconds')
    notified_within_s: float = Field(900, gt=0, description="longest time from landing to the queue")
    visibility_s: int = Field(60, ge=1, description="visibility timeout of the queues")
    max_receives: int = Field(2, ge=1, description="receives before a message goes to the dead-letter queue")
    poll_s: int = Field(20, ge=1, le=20, description="how long a poll of a queue waits")
    batch: int = Field(10, ge=1, le=10, description="maximum messages per response of a queue")
    dead_letters_s: float = Field(30, gt=0, description="interval between checks of the dead-letter queues")

    rate: float = Field(100, gt=0, description="generated events per second")
    stream_node: str = Field(
        "", description="node of the stream whose topic provides the events instead, such as conn-ga"
    )
    stream_pipeline: str = Field("clicks", description="pipeline of that node")
    file_records: int = Field(300, ge=1, description="maximum records per file")
    file_s: float = Field(10, gt=0, description="maximum time until a file is written, even if it has few records")
    writer_version: SchemaVersion = Field(2, description="schema version that files are written with")
    reader_version: SchemaVersion = Field(2, description="schema version that files are read with")

    @property
    def variables(self) -> dict[str, str]:
        """The settings as variables of another process."""
        variables_ = self.model_dump(mode="json", exclude_none=True)
        return {f"{ENV_PREFIX}{name}".upper(): str(value) for name, value in variables_.items()}

    def ledger_of(self, process: str) -> FactLedger:
        """Return a ledger file of this process's own."""
        return FactLedger(new_ledger_path(self.ledger_dir, process))
