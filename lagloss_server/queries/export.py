"""Exports of a window's messages that something is wrong with, as CSV, JSON or Parquet, for support and for repairs."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Final, Literal, TypedDict

from lagloss.wire.format import share_of
from lagloss_server.base.errors import NotebookMissing
from lagloss_server.base.format import datetime_of
from lagloss_server.base.trace_links import NO_LINKS, TraceLinks
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.csv_lines import csv_lines
from lagloss_server.queries.logged_messages import logged_messages
from lagloss_server.queries.matrix import Presence
from lagloss_server.queries.named_messages import COLUMNS, KeptMessages, NamedMessage, NamedMessageDocument, What

ExportFormat = Literal["csv", "parquet", "json"]
MEDIA_TYPES: Final[dict[ExportFormat, str]] = {
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
    "json": "application/json",
}
_ROW_GROUP: Final = 10_000
_MOMENTS: Final = ("event_time", "last_seen")
_NUMBERS: Final = ("lag_ms", "hop_ms")


class ExportHead(TypedDict):
    """What an export holds: see `WindowExport`."""

    pipeline: str
    window_start: str
    what: What
    source: Literal["log", "closing"]
    truncated: bool
    sample: float


class ExportDocument(ExportHead):
    """An export in JSON."""

    messages: list[NamedMessageDocument]


@dataclass(frozen=True)
class WindowExport:
    """The messages of a window that were asked for, to be gone through once. `source`: the log, or what the closing
    kept. `is_truncated`: there may be more; `sample`: the share of the ids that was looked at."""

    pipeline: str
    window_start_s: int
    what: What
    source: Literal["log", "closing"]
    messages: Iterable[NamedMessage]
    is_truncated: bool
    sample: float

    @classmethod
    def of(cls, pipeline: str, what: What, kept_messages: KeptMessages, presence: Presence | None) -> WindowExport:
        """Make an export of what the log has; where it was not read, of what the closing kept."""
        if presence is None:
            messages, sample = (
                map(kept_messages.placed, kept_messages.named(what)),
                share_of(kept_messages.picked.sample),
            )
            return cls(
                pipeline,
                kept_messages.window_start_s,
                what,
                "closing",
                messages,
                kept_messages.is_truncated(what),
                sample,
            )
        logged = logged_messages(presence, kept_messages, what)
        exported, sample = map(kept_messages.placed, logged), share_of(presence.blocks.sample)
        return cls(pipeline, kept_messages.window_start_s, what, "log", exported, is_truncated=False, sample=sample)

    def texts(self, format: Literal["csv", "json"], links: TraceLinks = NO_LINKS) -> Iterator[str]:
        """Yield the file a message at a time."""
        if format == "csv":
            yield from csv_lines(COLUMNS, (message.cells() for message in self.messages))
            return
        yield json.dumps(self._head())[:-1] + ', "messages": ['
        for index, message in enumerate(self.messages):
            yield (",\n" if index else "\n") + json.dumps(message.document(links))
        yield "]}\n"

    def parquet(self) -> bytes:
        """Return the file: times as UTC timestamps in ms, places as lists, ids as they were sent.

        Raises:
            NotebookMissing: PyArrow is not installed.
        """
        try:
            import pyarrow as pa
            from pyarrow import parquet
        except ImportError as error:
            raise NotebookMissing(what="Parquet", package="pyarrow", instead=", or use csv or json") from error
        texts = {name: pa.string() for name in COLUMNS}
        special = {"places": pa.list_(pa.string()), "partition": pa.int32(), "offset": pa.int64()}
        special |= dict.fromkeys(_NUMBERS, pa.float64())
        moments = dict.fromkeys(_MOMENTS, pa.timestamp("ms", "UTC"))
        schema = pa.schema(list({**texts, **special, **moments}.items()))
        schema = schema.with_metadata({name: str(value) for name, value in self._head().items()})
        out, messages = io.BytesIO(), iter(self.messages)
        with parquet.ParquetWriter(out, schema) as writer:
            while rows := [_values(message) for message in islice(messages, _ROW_GROUP)]:
                writer.write_table(pa.Table.from_pylist(rows, schema))
        return out.getvalue()

    def _head(self) -> ExportHead:
        return {
            "pipeline": self.pipeline,
            "window_start": rfc3339(self.window_start_s),
            "what": self.what,
            "source": self.source,
            "truncated": self.is_truncated,
            "sample": self.sample,
        }


def file_name(pipeline: str, window_start_s: int, what: What, format: ExportFormat) -> str:
    return f"{pipeline}-{rfc3339(window_start_s).replace(':', '')}-{what}.{format}"


def _values(message: NamedMessage) -> dict[str, Any]:
    event = None if message.event_ms is None else _moment(message.event_ms)
    return {**message.document(), "event_time": event, "last_seen": _moment(message.last_seen_ms)}


def _moment(epoch_ms: float) -> datetime:
    return datetime_of(round(epoch_ms) / 1_000)
