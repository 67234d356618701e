"""A partition whose log loses its tail, as by an unclean election."""

from __future__ import annotations

from pathlib import Path

from lagloss_server.ops.embedded.kafka import EmbeddedKafka


def log_file(folder: Path, topic: str, partition: int) -> Path:
    """The first file of a partition's log, in a broker's folder."""
    (file,) = folder.rglob(f"{topic}-{partition}/00000000000000000000.log")
    return file


def cut(broker: EmbeddedKafka, file: Path, size: int) -> None:
    """Restart the broker with no more of a log than its first bytes, of which `size` is a boundary of batches."""
    broker.stop()
    with file.open("r+b") as opened:
        opened.truncate(size)
    for path in (*file.parent.glob("*.snapshot"), *file.parents[2].rglob(".kafka_cleanshutdown")):
        path.unlink()
    broker.start()
