"""Requests and answers in JSON: batches of beacons, and reports."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated, Final, NotRequired, TypeVar

from msgspec import UNSET, Struct, UnsetType
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    with_config,
)
from pydantic_core import PydanticCustomError, from_json
from typing_extensions import TypedDict  # pydantic asks for this one before Python 3.12

from collector.batches import BeaconBatch, Numbered, Seen
from collector.bodies import demand_few_objects
from collector.log_writer import LogPosition
from collector.metadata_cache import KnownPipeline
from lagloss.sdk.packing import MAX_REASON_CHARS
from lagloss.wire.format import (
    MAX_ID_BYTES,
    MAX_NAME_BYTES,
    SAMPLE_ALL,
    EmitterReport,
    OffsetRange,
    Progress,
    Tally,
    TallyRecord,
    name_fits,
    replay_name,
)
from lagloss.wire.sketch import Sketch
from lagloss.wire.times import NOT_A_TIME, read_time
from lagloss.wire.traces import cut_traceparent
from lagloss_server.base.fields import Name
from lagloss_server.base.invalid import explain, write_path
from lagloss_server.net.problem_details import Problem

T = TypeVar("T")

MAX_ERRORS: Final = 1_000
"""Errors of a body that are looked at. Lists end with their first bad item, but names of members can all be bad."""
MAX_MEMBERS: Final = 10_000
"""Members of an object in a body; of a batch or report it has a dozen, of a DAG's run one a task."""
MAX_SEQ: Final = (1 << 31) - 1
PLACE: Final = r"^(in|out(:[A-Za-z0-9][A-Za-z0-9_-]{0,99})?|filtered|dead)$"


def _is_text(value: str) -> str:
    value.encode()  # JSON can spell half a surrogate pair, UTF-8 cannot
    return value


def _fits_the_tables(value: str) -> str:
    if not name_fits(value):
        raise ValueError(f"expected up to {MAX_NAME_BYTES} bytes of UTF-8 without NUL")
    return value


def _time_ms(value: object) -> float:
    try:
        return read_time(value)
    except ValueError:
        raise PydanticCustomError("time", NOT_A_TIME) from None


Label = Annotated[str, Field(min_length=1, max_length=MAX_REASON_CHARS), AfterValidator(_is_text)]
Replay = Annotated[str, AfterValidator(replay_name)]
"""A replay's name that cannot be one is that of a replay all the same, as to the SDK: clients hand on what they got."""
Text = Annotated[str, AfterValidator(_fits_the_tables)]
Time = Annotated[float, PlainValidator(_time_ms, json_schema_input_type=float | str)]
"""A number or text that `read_time` reads; as epoch ms."""
Int64 = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Int32 = Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]
Count32 = Annotated[int, Field(ge=0, lt=1 << 31)]


@with_config(ConfigDict(extra="forbid"))
class BeaconJson(TypedDict):
    """One message at one checkpoint."""

    checkpoint: Annotated[str, Field(pattern=PLACE)]
    message_id: Annotated[str, Field(min_length=1, max_length=MAX_ID_BYTES)]
    event_time: Time
    observed_at: NotRequired[Time | None]
    reason: NotRequired[Label | None]
    replay: NotRequired[Replay | None]
    traceparent: NotRequired[str | None]


@with_config(ConfigDict(extra="forbid"))
class BatchJson(TypedDict):
    """Beacons of one node of one pipeline; all are accepted or none."""

    pipeline: Name
    node: Name
    first: NotRequired[bool]
    emitter: NotRequired[uuid.UUID]
    seq: NotRequired[Annotated[int, Field(ge=1, le=MAX_SEQ, strict=True)]]
    beacons: Annotated[list[BeaconJson], Field(min_length=1), FailFast()]


BATCH: Final = TypeAdapter(BatchJson)


def read_batch(body: bytes) -> BatchJson:
    """Return the batch in a body; raise a Problem (422) that names position and field if it is malformed."""
    return validated(BATCH, body, "batch", "beacon", "beacons")


def as_batch(raw: BatchJson, known: KnownPipeline | None) -> BeaconBatch:
    """Return the batch in the form that is checked and put; a Problem (422) for an id that is none."""
    if ("emitter" in raw) != ("seq" in raw):
        raise Problem(422, "Bad batch", "expected both emitter and seq, or neither", field="seq")
    node = raw["node"]
    return BeaconBatch(
        raw["pipeline"],
        node,
        raw.get("first", False) if known is None else node in known.sources,
        [as_seen(index, beacon) for index, beacon in enumerate(raw["beacons"])],
        Numbered(raw["emitter"].bytes, raw["seq"]) if "emitter" in raw else None,
    )


def as_seen(number: int, beacon: BeaconJson) -> Seen:
    """Return the beacon at this position of a batch; see `as_batch`.

    Raises:
        Problem: its message id is too long (422).
    """
    message_id = beacon["message_id"]
    if not message_id.isascii() and not _id_fits(message_id):
        detail = f"expected 1 to {MAX_ID_BYTES} bytes of UTF-8"
        raise Problem(422, "Bad beacon", detail, position=number, field="message_id")
    return Seen(
        beacon["checkpoint"],
        message_id,
        beacon["event_time"],
        beacon.get("observed_at"),
        beacon.get("reason"),
        beacon.get("replay"),
        cut_traceparent(beacon.get("traceparent")),
    )


def _id_fits(message_id: str) -> bool:
    try:
        return len(message_id.encode()) <= MAX_ID_BYTES
    except UnicodeEncodeError:
        return False


def validated(adapter: TypeAdapter[T], body: bytes, whole: str, part: str, parts: str) -> T:
    """Return what a body in JSON holds; raise a Problem (422) as `invalid` does if it is malformed, 413 if it has too
    many objects."""
    demand_few_objects(body)
    document: object = None
    try:
        try:
            document = from_json(body)
        except ValueError:
            return adapter.validate_json(body)  # which says where it ends to be JSON
        demand_few_members(body, document, whole)
        # Pydantic validates bytes, too, but then makes an object of all that a missing key was missing in, for each.
        return adapter.validate_python(document)
    except ValidationError as error:
        problem = invalid(error, document, whole, part, parts)
    # Raised here, and without the document: errors can take 40 MB, and what an exception holds stays for a while.
    del document
    raise problem


def demand_few_members(body: bytes, document: object, whole: str) -> None:
    """Raise a Problem (422) if an object of the document in a body has so many members that an error of each would take
    up the memory."""
    parts = [document] if body.count(b":") > MAX_MEMBERS else []  # else no object in it can have so many
    while parts:
        part = parts.pop()
        if isinstance(part, dict) and len(part) > MAX_MEMBERS:
            raise Problem(422, f"Bad {whole}", f"expected up to {MAX_MEMBERS} members in an object")
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        parts.extend(member for member in inner if isinstance(member, dict | list))


def invalid(error: ValidationError, document: object, whole: str, part: str, parts: str) -> Problem:
    """Name the first thing that is wrong with a document; if that is a `part` in the list called `parts`, also its
    position."""
    if error.error_count() > MAX_ERRORS:  # each takes 1 KB to look at
        return Problem(422, f"Bad {whole}", f"expected a valid {whole}, found more than {MAX_ERRORS} errors")
    problem = next(explain(error, document))
    path, detail = problem.path, problem.problem
    is_part = path[:1] == (parts,) and len(path) > 1 and isinstance(path[1], int)
    if not is_part:
        return Problem(422, f"Bad {whole}", detail, field=write_path(path) if path else None)
    inner = path[2:]
    if detail == NOT_A_TIME:
        inner = path[-1:]
    elif len(inner) > 1:
        detail = f"{write_path(inner[1:])}: {detail}"
    field = write_path(inner[:1]) if inner else None
    return Problem(422, f"Bad {part}", detail, position=int(path[1]), field=field)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RangeJson(_Strict):
    partition: Count32
    first: Count
    last: Count


class BinJson(_Strict):
    key: Int32
    count: Count


class ProgressJson(_Strict):
    checkpoint: Text
    lane: Text
    until: Int64


class TallyJson(_Strict):
    """A tally (docs/wire-format.md), with bins and ranges as lists in any order; `id_sum` is a signed int64."""

    checkpoint: Text
    window_start: Count
    replay: Text | None = None
    sample: Annotated[int, Field(ge=1, le=SAMPLE_ALL)] = SAMPLE_ALL
    beacons: Count
    payload_bytes: Count = 0
    id_sum: Int64
    dropped: Count = 0
    lag_sketch: Annotated[list[BinJson], FailFast()] = []
    ranges: Annotated[list[RangeJson], FailFast()] = []

    def tally(self) -> Tally:
        return Tally(
            self.checkpoint,
            self.window_start,
            self.beacons,
            self.id_sum,
            Sketch.from_bins({bin_.key: bin_.count for bin_ in self.lag_sketch if bin_.count}),
            _in_order(self.ranges),
            self.replay,
            self.sample,
            self.payload_bytes,
            self.dropped,
        )


def _in_order(ranges: Sequence[RangeJson]) -> tuple[OffsetRange, ...]:
    """Return the ranges in the order of a report, of those that begin at the same offset the longest."""
    lasts: dict[tuple[int, int], int] = {}
    for place in sorted(ranges, key=lambda place: (place.partition, place.first, place.last)):
        lasts[place.partition, place.first] = place.last
    return tuple(OffsetRange(partition, first, last) for (partition, first), last in lasts.items())


class ReportJson(_Strict):
    """An emitter report; `emitter` is a UUID."""

    pipeline: Name
    node: Name
    emitter: uuid.UUID
    host: Text = ""
    seq: Count
    started_at: Count
    sent_at: Count
    closed: bool = False
    final_through: Count = 0
    progress: Annotated[list[ProgressJson], FailFast()] = []
    tallies: Annotated[list[TallyJson], FailFast()] = []
    resumes: bool = False
    labels: dict[str, Text] = {}
    unfinished: bool = False

    def report(self) -> EmitterReport:
        return EmitterReport(
            self.pipeline,
            self.node,
            self.emitter.bytes,
            self.host,
            self.seq,
            self.started_at,
            self.sent_at,
            self.closed,
            self.final_through,
            tuple(Progress(progress.checkpoint, progress.lane, progress.until) for progress in self.progress),
            tuple(tally.tally() for tally in self.tallies),
            self.resumes,
            self.labels,
            self.unfinished,
        )


REPORT: Final = TypeAdapter(ReportJson)


class Accepted(Struct, omit_defaults=True):
    """Number of beacons acknowledged by the broker; `tallies`, for a numbered batch: its additions to the report."""

    accepted: int
    tallies: list[TallyRecord] | UnsetType = UNSET


class Written(Struct):
    """Positions of the blocks in the log, in the order of the request."""

    positions: Sequence[LogPosition]


class Intake(Struct):
    """Settings of an emitter: number of partitions, and sample."""

    partitions: int
    sample: int
