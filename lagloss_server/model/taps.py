"""Taps of a definition: checkpoints whose beacons are made of a topic's records and a consumer group's commits, with
nothing installed at the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from lagloss_server.fields import Name, Strict

GroupId = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,255}$")]
"""As Kafka's clients call it: `group.id`."""
TopicName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
Place = Annotated[str, Field(pattern=r"^(in|out|filtered|dead|out:[A-Za-z0-9][A-Za-z0-9_-]{0,99})$")]
"""A checkpoint without its node."""
Elsewhere = Literal["beacons", "commit"]
"""`beacons`: the node's processes send them; `commit`: the checkpoint of a sink is that of its group's commits."""
Format = Literal["auto", "json", "avro", "protobuf", "text"]


class TapSpec(Strict):
    """Where the beacons of a checkpoint come from: the records of a topic (`out…`, `filtered`, `dead`), or the commits
    of a consumer group (`in`). An `id` or `event_time` that is left out is that of the tap before it in the flow."""

    topic: TopicName | None = None
    group: GroupId | None = None
    cluster: Name | None = None
    id: str | None = None
    event_time: str | None = Field(default=None, alias="eventTime")
    where: str | None = None
    format: Format | None = None
    schema_: str | None = Field(default=None, alias="schema")
    message: str | None = None

    @model_validator(mode="after")
    def _names_its_source(self) -> Self:
        if self.topic is None and self.group is None:
            raise ValueError("expected a `topic` or a `group`")
        return self


@dataclass(frozen=True, slots=True)
class Extraction:
    """How ids and event times are read from records; see docs/taps.md. `schema`: its text, None for a registry's."""

    id: str
    event_time: str
    where: str | None = None
    format: Format = "auto"
    schema: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Tap:
    """A topic, or a consumer group's part in one, from which the beacons of checkpoints of a node are made.

    `cluster`: name of the Kafka cluster, empty for the one of lagloss's own topics. `places`: checkpoints without their
    node. `first`: the node has no incoming link.
    """

    pipeline: str
    node: str
    cluster: str
    topic: str
    group: str | None
    places: tuple[str, ...]
    extraction: Extraction
    first: bool

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return the tap of which `dataclasses.asdict` made this document."""
        return cls(
            **{
                **document,
                "places": tuple(document["places"]),
                "extraction": Extraction(**document["extraction"]),
            }
        )

    @property
    def source(self) -> str:
        """The source as people read it: `topic orders`, `group enrich of topic orders`."""
        return f"topic {self.topic}" if self.group is None else f"group {self.group} of topic {self.topic}"


COMMIT: Final = "commit"
BEACONS: Final = "beacons"
