"""What every process of the reference pipeline is told at start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline_under_test.faults import Fault, Faults
from pipeline_under_test.ledger import Ledger
from pipeline_under_test.topology import PIPELINE


@dataclass(frozen=True, slots=True)
class Settings:
    """Where Kafka is, what the pipeline is called (topics and groups begin with it), and which faults it has.

    `receiver_url` and `collector_url` are the addresses of the fake vendor and of col-service, once they are known.
    """

    bootstrap: str
    data_dir: Path
    pipeline: str = PIPELINE
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    receiver_url: str = ""
    collector_url: str = ""

    @property
    def ledger_dir(self) -> Path:
        return self.data_dir / "ledger"

    def faults_of(self, node: str) -> Faults:
        return Faults(node, self.faults, self.seed)

    def ledger_of(self, process: str) -> Ledger:
        return Ledger(self.ledger_dir, process)

    def arguments(self) -> list[str]:
        """The command line that makes these settings again, for a child process."""
        words = ["--bootstrap", self.bootstrap, "--data-dir", str(self.data_dir), "--pipeline", self.pipeline]
        words += ["--seed", str(self.seed)]
        for fault in self.faults:
            words += ["--fault", fault.text]
        if self.receiver_url:
            words += ["--receiver-url", self.receiver_url]
        if self.collector_url:
            words += ["--collector-url", self.collector_url]
        return words
