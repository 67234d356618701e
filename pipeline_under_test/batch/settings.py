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

    data_dir: Path = Field(default_factory=_data_dir, description="ledger, faults, logs and beats")
    s3_endpoint: str | None = Field(None, description="URL of S3, SNS and SQS; none: AWS")
    database_url: str = Field("", description="postgresql://… of the pipeline's own database, not of lagloss's")
    pipeline: str = Field(PIPELINE, description="pipeline of records; bucket, topic and queues begin with it")
    seed: int = Field(0, description="seed of faults and events")

    span_s: int = Field(HOUR_S, ge=60, multiple_of=60, description='seconds of an "hour"')
    notified_within_s: float = Field(900, gt=0, description="longest time from landing to the queue")
    visibility_s: int = Field(60, ge=1, description="visibility timeout of the queues")
    max_receives: int = Field(2, ge=1, description="tries before a message goes to the dead-letter queue")
    poll_s: int = Field(20, ge=1, le=20, description="how long a poll of a queue waits")
    batch: int = Field(10, ge=1, le=10, description="messages in one answer of a queue, at most")
    dead_letters_s: float = Field(30, gt=0, description="interval at which the dead-letter queues are looked at")

    rate: float = Field(100, gt=0, description="events per second that are made")
    stream_node: str = Field("", description="node of the stream whose topic events are read from instead: conn-ga")
    stream_pipeline: str = Field("clicks", description="the stream that it belongs to")
    file_records: int = Field(300, ge=1, description="records in a file, at most")
    file_s: float = Field(10, gt=0, description="a file is written after this long, however few records it has")
    writer_version: SchemaVersion = Field(2, description="version of the schema that files are written with")
    reader_version: SchemaVersion = Field(2, description="version that they are read as")

    @property
    def variables(self) -> dict[str, str]:
        """The settings as variables of another process."""
        variables_ = self.model_dump(mode="json", exclude_none=True)
        return {f"{ENV_PREFIX}{name}".upper(): str(value) for name, value in variables_.items()}

    def ledger_of(self, process: str) -> FactLedger:
        """Return a ledger file of this process's own."""
        return FactLedger(new_ledger_path(self.ledger_dir, process))
