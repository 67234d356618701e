"""`lagloss tap try`: what would be extracted from a topic's newest records, and what could not be."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from lagloss.broker.errors import reaching
from lagloss.errors import UsageError
from lagloss.identity import REPLAY_HEADER, replay_in
from lagloss.wire.sketch import rank
from lagloss_server.base.errors import NotEnoughData
from lagloss_server.base.format import datetime_of
from lagloss_server.base.settings import Settings
from lagloss_server.cli.options import AsJson, DataDir, out
from lagloss_server.extraction import Extractor
from lagloss_server.extraction.guesses import Guesses, guess
from lagloss_server.model.expressions import ConditionExpression, IdExpression, TimeExpression
from lagloss_server.model.message_ids import readable_id
from lagloss_server.model.taps import FORMATS, Extraction, Format, read_schema
from lagloss_server.model.window import rfc3339
from lagloss_server.net.schema_registry import registry_of
from taps.clusters import cluster_of
from taps.sample import Sample, read_newest
from taps.topic_reader import TopicReader

MAX_GUESSES = 5
KEY_CHARS = 24


@dataclass(frozen=True, slots=True)
class Trial:
    """What an extraction gives of a sample. `ids`, `event_ms`: by row; None where there is none. `reasons`: by row.
    `replays`: names of replays, of the rows that have one."""

    extraction: Extraction
    ids: list[str | None]
    event_ms: list[float | None]
    reasons: list[str | None]
    left_out: int
    counts: dict[str, int]
    replays: dict[int, str]

    @classmethod
    def of(cls, extraction: Extraction, sample: Sample, extractor: Extractor) -> Trial:
        """Extract from a sample."""
        extracted = extractor.extract(sample.records)
        ids: list[str | None] = [None] * len(sample)
        times: list[float | None] = [None] * len(sample)
        reasons: list[str | None] = ["excluded by where"] * len(sample)
        for row, raw, at_ms in zip(extracted.rows.tolist(), extracted.ids, extracted.event_ms.tolist(), strict=True):
            ids[row], times[row], reasons[row] = raw.decode(), at_ms, None
        for reason, rows in extracted.unreadable_rows.items():
            for row in rows.tolist():
                reasons[row] = reason
        counts: dict[str, int] = {reason: count for reason, (count, _) in extracted.unreadable.items()}
        replays = {row: replay_in(value) for row, value in sample.records.with_header(REPLAY_HEADER).items()}
        return cls(extraction, ids, times, reasons, extracted.left_out, counts, replays)

    @property
    def readable(self) -> int:
        return sum(message_id is not None for message_id in self.ids)


def try_topic(
    topic: Annotated[str, typer.Argument(help="name of the topic", metavar="TOPIC")],
    message_id: Annotated[
        str | None,
        typer.Option("--id", help="$.path, key, header:NAME, hash(…) or partition-offset (default: guessed)"),
    ] = None,
    event_time: Annotated[
        str | None, typer.Option(help="like --id, or timestamp; add ` in s|ms|us|ns` for the unit (default: guessed)")
    ] = None,
    where: Annotated[str | None, typer.Option(help="""condition, such as '$.type == "order"'""")] = None,
    form: Annotated[Format, typer.Option("--format", help=", ".join(FORMATS))] = "auto",
    schema: Annotated[Path | None, typer.Option(help="file with an Avro schema, a .proto or a descriptor set")] = None,
    message: Annotated[str | None, typer.Option(help="name of the Protobuf message in that file")] = None,
    cluster: Annotated[str, typer.Option(help="name of the Kafka cluster (default: the one that lagloss uses)")] = "",
    count: Annotated[int, typer.Option(min=1, max=1_000, help="number of records to show")] = 10,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Show what a tap would extract from a topic's newest records, and what it could not read.

    Exit codes: 2 usage, 3 a server cannot be reached, 4 the topic has no records.
    """
    try:
        text = None if schema is None else read_schema(schema)
    except ValueError as error:
        raise UsageError(detail=str(error)) from error
    connection = cluster_of(cluster, Settings.load(data_dir=data_dir))
    with reaching(connection), closing(TopicReader(connection, topic)) as reader:
        sample = read_newest(reader)
    if not len(sample):
        raise NotEnoughData(
            detail=f"topic {topic} has no records: none were produced yet, or retention deleted all of them"
        )
    registry = registry_of(cluster)
    guesses = guess(sample.records, form, text, message, registry)
    chosen_id = message_id or (guesses.ids[0].expression if guesses.ids else "key")
    chosen_time = event_time or guesses.times[0].expression
    try:
        chosen = IdExpression.parse(chosen_id)
        extraction = Extraction(
            chosen,
            TimeExpression.parse(chosen_time),
            ConditionExpression.parse(where) if where else None,
            form,
            text,
            message,
            (topic,) if chosen.is_own_position else (),
        )
    except ValueError as error:
        raise UsageError(detail=str(error)) from error
    trial = Trial.of(extraction, sample, Extractor(extraction, registry))
    if as_json:
        print(json.dumps(_document(sample, trial, guesses, count), indent=2))  # noqa: T201
    else:
        _print(sample, trial, guesses, count, guessed=(message_id is None, event_time is None))


def _document(sample: Sample, trial: Trial, guesses: Guesses, count: int) -> dict[str, Any]:
    first = max(0, len(sample) - count)
    return {
        "topic": sample.topic,
        "id": trial.extraction.id.written,
        "event_time": trial.extraction.event_time.written,
        "records": len(sample),
        "readable": trial.readable,
        "left_out": trial.left_out,
        "unreadable": trial.counts,
        "sample": [
            {
                "partition": int(sample.partitions[row]),
                "offset": int(sample.offsets[row]),
                "timestamp": rfc3339(int(sample.records.timestamp_ms[row]) / 1_000),
                "id": trial.ids[row],
                "event_time": None if (event_ms := trial.event_ms[row]) is None else rfc3339(event_ms / 1_000),
                "reason": trial.reasons[row],
                "replay": trial.replays.get(row),
            }
            for row in range(first, len(sample))
        ],
        "guesses": {
            "ids": [asdict(guess) for guess in guesses.ids[:MAX_GUESSES]],
            "times": [asdict(guess) for guess in guesses.times[:MAX_GUESSES]],
        },
    }


def _print(sample: Sample, trial: Trial, guesses: Guesses, count: int, guessed: tuple[bool, bool]) -> None:
    console = out()
    columns = ("record", "record time (UTC)", "key", "message id", "event time (UTC)", "lag", "unreadable")
    table = Table(*columns, box=None, header_style="bold")
    for row in range(max(0, len(sample) - count), len(sample)):
        stamp, event = int(sample.records.timestamp_ms[row]), trial.event_ms[row]
        table.add_row(
            sample.place(row),
            _clock(stamp),
            escape(_key(sample.records.keys[row])),
            escape(readable_id((trial.ids[row] or "").encode())),
            "" if event is None else _clock(event),
            "" if event is None else f"{stamp - event:,.0f} ms",
            trial.reasons[row] or "",
        )
    console.print(table)
    console.print()
    console.print(escape(summary(sample, trial)))
    if any(guessed):
        for name, candidates, chosen in (
            ("--id", guesses.ids, guessed[0]),
            ("--event-time", guesses.times, guessed[1]),
        ):
            if chosen:
                console.print(f"guesses for {name}:")
                for candidate in candidates[:MAX_GUESSES]:
                    shares = f"in {candidate.share:.0%} of the records, {candidate.distinct:.0%} distinct"
                    facts = f"{shares}, such as {candidate.example}"
                    console.print(escape(f"  {candidate.expression}  {facts}"))


def summary(sample: Sample, trial: Trial) -> str:
    """Return in a few lines how much of a sample can be read, and how its ids and times look."""
    extraction = trial.extraction
    live = [row for row in range(len(sample)) if row not in trial.replays]
    ids = [message_id for row in live if (message_id := trial.ids[row]) is not None]
    by = f"id {extraction.id.written} and eventTime {extraction.event_time.written}"
    lines = [f"{trial.readable} of the newest {len(sample)} records can be read with {by}."]
    if trial.left_out:
        lines.append(f"{trial.left_out} are excluded by the condition.")
    lines += [f"{count} cannot be read: {reason}." for reason, count in trial.counts.items()]
    if trial.replays:
        lines.append(f"{len(trial.replays)} were replayed: no lag, no duplicates.")
    if ids:
        if len(set(ids)) < len(ids):
            lines.append(f"{len(ids) - len(set(ids))} have the id of another record.")
        times = ((int(sample.records.timestamp_ms[row]), trial.event_ms[row]) for row in live)
        lags = sorted(at_ms - event_ms for at_ms, event_ms in times if event_ms is not None)
        p50 = lags[rank(0.5, len(lags)) - 1]
        lines.append(f"Lag of the records: p50 {p50:,.0f} ms, max {lags[-1]:,.0f} ms.")
    if not sample.is_append_time:
        lines.append("The topic stores the producer's time (CreateTime), so lags depend on the producer's clock.")
    return "\n".join(lines)


def _clock(at_ms: float) -> str:
    return datetime_of(at_ms / 1_000).strftime("%m-%d %H:%M:%S.%f")[:-3]


def _key(raw: bytes | None) -> str:
    return "" if raw is None else readable_id(raw)[:KEY_CHARS]
