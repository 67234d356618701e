"""Taps of a definition: checkpoints whose beacons are made of a topic's records and a consumer group's commits, with
nothing installed at the nodes."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, get_args

from pydantic import Field, ValidationInfo, field_validator, model_validator

from lagloss.identity import ID_HEADER, REPLAY_HEADER
from lagloss_server.base.fields import Name, Strict, like
from lagloss_server.model.expressions import ConditionExpression, IdExpression, RecordPart, TimeExpression

TAP_LABEL: Final = "lagloss.tap"
"""Label of the emitter that a tap is: its source."""
GroupId = Annotated[str, like(r"^[^\x00-\x1f\x7f]{1,255}$", "a group name of 1 to 255 characters in one line")]
"""As Kafka's clients call it: `group.id`."""
ConnectorName = Annotated[
    str, like(r"^[^\x00-\x1f\x7f]{1,200}$", "a connector name of 1 to 200 characters in one line")
]
TopicName = Annotated[
    str, like(r"^[A-Za-z0-9._-]{1,249}$", "a topic name of 1 to 249 letters, digits, `.`, `-` and `_`")
]
TapPlace = Annotated[
    str,
    like(r"^(in|out|filtered|dead|out:[A-Za-z0-9][A-Za-z0-9_-]{0,99})$", "one of in, out, out:NODE, filtered or dead"),
]
"""A checkpoint without its node."""
Elsewhere = Literal["beacons", "commit"]
"""`beacons`: the node's processes send them; `commit`: the checkpoint of a sink is that of its group's commits."""
Format = Literal["auto", "json", "avro", "protobuf", "text"]
Order = Literal["key", "partition"]
"""Within what records have an order: those of a key in a partition, or all of a partition."""
FORMATS: Final[tuple[Format, ...]] = get_args(Format)


MAX_SCHEMA_BYTES: Final = 1024 * 1024
"""Of a schema's file, and of a schema's text in a definition."""
_SCHEMA_FILE: Final = re.compile(r"[^\n{}\"\[\]]{1,250}\.(avsc|proto|desc|pb|json)")


def read_schema(path: Path) -> str:
    """Return the text of a schema's file, of a compiled one as base64.

    Raises:
        ValueError: it cannot be read, or is too large.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SCHEMA_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ValueError(f"expected a readable schema, found {error}") from error
    if len(raw) > MAX_SCHEMA_BYTES:
        raise ValueError(f"expected a schema of up to {MAX_SCHEMA_BYTES:,} bytes, found a longer one")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return base64.b64encode(raw).decode()
    return text if path.suffix in (".avsc", ".proto", ".json") else base64.b64encode(raw).decode()


class OffsetStorage(NamedTuple):
    """The topic in which workers of Kafka Connect store the offsets of source connectors, and the name of its cluster,
    empty for the one of lagloss's own topics."""

    cluster: str
    topic: str


class TapSpec(Strict):
    """The source of a checkpoint's beacons: the records of a topic (`out…`, `filtered`, `dead`), or what has been
    read of it (`in`): the commits of a consumer group, or the offsets that a source connector has stored. `id` and
    `event_time` default to those of the preceding tap in the flow."""

    topic: TopicName | None = None
    group: GroupId | None = None
    connector: ConnectorName | None = None
    offsets: TopicName | None = None
    offsets_cluster: Name | None = Field(default=None, alias="offsetsCluster")
    cluster: Name | None = None
    id: IdExpression | None = None
    event_time: TimeExpression | None = Field(default=None, alias="eventTime")
    where: ConditionExpression | None = None
    format: Format | None = None
    schema_: Annotated[str, Field(max_length=2 * MAX_SCHEMA_BYTES)] | None = Field(default=None, alias="schema")
    message: Annotated[str, Field(max_length=1_000)] | None = None

    @field_validator("schema_", mode="before")
    @classmethod
    def _is_read(cls, value: object, info: ValidationInfo) -> object:
        if not (isinstance(value, str) and _SCHEMA_FILE.fullmatch(value)):
            return value
        folder = (info.context or {}).get("folder")
        if folder is None:
            raise ValueError(
                f"expected the text of a schema, found the file name {value}; only `lagloss apply` reads schema files"
            )
        return read_schema(folder / value)

    @model_validator(mode="after")
    def _names_its_source(self) -> Self:
        if self.topic is self.group is self.connector is None:
            raise ValueError("expected a `topic`, a `group` or a `connector`")
        if self.group is not None and self.connector is not None:
            raise ValueError("expected either a `group` or a `connector`, found both")
        if self.connector is not None and self.offsets is None:
            raise ValueError("expected `offsets`, the topic of the Connect workers' `offset.storage.topic`")
        if self.connector is None and (self.offsets is not None or self.offsets_cluster is not None):
            raise ValueError("expected `offsets` and `offsetsCluster` only with a `connector`")
        return self

    @property
    def reader(self) -> str | None:
        """The consumer group or source connector."""
        return self.group or self.connector

    @property
    def storage(self) -> OffsetStorage | None:
        """Where the connector's offsets are; None for a group, whose commits the brokers keep."""
        return None if self.offsets is None else OffsetStorage(self.offsets_cluster or "", self.offsets)


@dataclass(frozen=True, slots=True)
class Extraction:
    """What to extract from the records of a topic: their ids and event times, of those that pass `where`.

    `schema`: the text of an Avro schema or a .proto, or a FileDescriptorSet in base64, of records without the number of
    a schema in a registry; `message`: the name of a Protobuf message in it. `origins`: the topics that an id of the
    form "position" may name, that of the records themselves alone where it is their own position; none: any topic.

    Raises:
        ValueError: these do not fit together.
    """

    id: IdExpression
    event_time: TimeExpression
    where: ConditionExpression | None = None
    format: Format = "auto"
    schema: str | None = None
    message: str | None = None
    origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.id.is_own_position and len(self.origins) != 1:
            raise ValueError(f"expected one topic that positions are of, found {len(self.origins)}")
        if self.format not in FORMATS:
            raise ValueError(f"expected a format of {', '.join(FORMATS)}, found {self.format!r}")
        if self.schema is not None and self.format not in ("avro", "protobuf"):
            raise ValueError(f"expected a schema only with the format avro or protobuf, found format {self.format}")
        if self.message is not None and (self.format != "protobuf" or self.schema is None):
            raise ValueError("expected `message` only with the format protobuf and a schema")
        if self.format == "text" and any(part.source == "value" and part.path for part in self.parts()):
            raise ValueError("expected only `$` for a value with the format text, which has no fields")

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return the extraction in a `document`."""
        where = document["where"]
        return cls(
            IdExpression.parse(document["id"]),
            TimeExpression.parse(document["event_time"]),
            None if where is None else ConditionExpression.parse(where),
            document["format"],
            document["schema"],
            document["message"],
            tuple(document.get("origins", ())),
        )

    def document(self) -> dict[str, Any]:
        """Return it as JSON, expressions as they were written."""
        written = {"id": self.id.written, "event_time": self.event_time.written}
        where = self.where.written if self.where else None
        own = {"where": where, "format": self.format, "schema": self.schema, "message": self.message}
        return {**written, **own, **({"origins": list(self.origins)} if self.origins else {})}

    def headers(self) -> set[str]:
        """Return the names of the headers that are looked at: also that of ids, by which a record that is replayed
        names the position of the message that it is a copy of."""
        named = {part.name for part in self.parts() if part.source == "header"}
        return {*named, ID_HEADER, REPLAY_HEADER} if self.id.form == "position" else named

    def parts(self) -> tuple[RecordPart, ...]:
        """Return the parts of a record that are looked at, each once."""
        where = self.where.parts() if self.where else ()
        return tuple(dict.fromkeys((*self.id.parts, self.event_time.part, *where)))


@dataclass(frozen=True, slots=True)
class Tap:
    """A topic, or a reader's part in one, from which the beacons of checkpoints of a node are made.

    `cluster`: name of the Kafka cluster, empty for the one of lagloss's own topics. `group`: the consumer group that
    reads it, or the source connector, whose offsets are in `offsets`. `places`: checkpoints without their node.
    `first`: the node has no incoming link. `order`: within what that of its records is judged.
    """

    pipeline: str
    node: str
    cluster: str
    topic: str
    group: str | None
    places: tuple[str, ...]
    extraction: Extraction
    first: bool
    order: Order | None = None
    offsets: OffsetStorage | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return the tap in a `document`."""
        extraction = Extraction.of(document["extraction"])
        offsets = OffsetStorage(*document["offsets"]) if "offsets" in document else None
        places = tuple(document["places"])
        return cls(**{**document, "places": places, "extraction": extraction, "offsets": offsets})

    def document(self) -> dict[str, Any]:
        """Return the tap as JSON."""
        names = ("pipeline", "node", "cluster", "topic", "group", "first")
        own = {name: getattr(self, name) for name in (*names, *(["order"] if self.order else []))}
        offsets = {"offsets": list(self.offsets)} if self.offsets else {}
        return {**own, **offsets, "places": list(self.places), "extraction": self.extraction.document()}

    @property
    def source(self) -> str:
        """The source as people read it: `topic orders`, `group enrich of topic orders`."""
        return f"topic {self.topic}" if self.group is None else f"{self.reader} of topic {self.topic}"

    @property
    def reader(self) -> str:
        """The reader as people read it: `group enrich`, `connector mirror`."""
        return f"{'group' if self.offsets is None else 'connector'} {self.group}"


COMMIT: Final = "commit"
BEACONS: Final = "beacons"
