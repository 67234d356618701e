"""The folder of a run: what processes of both pipelines, and those who watch them, find in it."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel


class DataFolder(BaseModel):
    """Settings of a pipeline that runs in `data_dir`."""

    data_dir: Path

    @property
    def ledger_dir(self) -> Path:
        return self.data_dir / "ledger"

    @property
    def log_dir(self) -> Path:
        return self.data_dir / "logs"

    @property
    def beats_dir(self) -> Path:
        """Where each process shows that it lives."""
        return self.data_dir / "beats"

    @property
    def faults_path(self) -> Path:
        return self.data_dir / "faults.jsonl"
