"""Documents of incidents as `/api/v1` has them: the types of what `Incident.document` and `details` return."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from lagloss_server.base.trace_links import TraceDocument
from lagloss_server.blame.sentences import BlameDocument
from lagloss_server.incidents.actions import SilenceDocument
from lagloss_server.incidents.changes import ChangeDocument
from lagloss_server.incidents.deliveries import DeliveryDocument
from lagloss_server.incidents.repairs import RepairRecordDocument
from lagloss_server.model.place import PlaceKind
from lagloss_server.model.window import Interval


class BreachDocument(TypedDict):
    """Values of the rule in its unit: of the last window, the worst one, and the target."""

    value: float
    worst: float
    target: float
    text: str


class BreachWindows(TypedDict):
    """The windows that breach, and their number."""

    first: str
    last: str
    count: int


class PlaceDocument(TypedDict):
    """A place of a breach. `share` of all of it, if it is known; `lost`: messages, of a loss."""

    kind: PlaceKind
    name: str
    share: float | None
    text: str
    lost: NotRequired[int]


class IncidentDocument(TypedDict):
    """An incident: see `Incident`. `destination`, `node`, `link` or `checkpoint`: of a rule that is about one place."""

    id: str
    pipeline: str
    rule: str
    kind: str
    severity: str
    destination: NotRequired[str]
    node: NotRequired[str]
    link: NotRequired[str]
    checkpoint: NotRequired[str]
    state: str
    opened_at: str | None
    resolved_at: str | None
    resolved_because: str | None
    acknowledged_at: str | None
    acknowledged_by: str | None
    withheld: str | None
    breach: BreachDocument
    since: str
    windows: BreachWindows
    where: list[PlaceDocument]


class OpenIncidentDocument(IncidentDocument):
    """An incident with the silence that matches it now."""

    silence: SilenceDocument | None


class AffectedDestination(TypedDict):
    """What became of the messages due at a destination in the newest windows that breach."""

    name: str
    due: int
    dead: int
    on_time: int
    on_time_of: int
    lost: Interval


class ExampleDocument(TraceDocument):
    """A message of the newest windows that breach. `lag_ms`, `hop` and `hop_ms`: of a late one, what held it longest,
    and for how long; `reason`: of a dead one."""

    message_id: str | None
    id_hash: str
    kind: str
    places: list[str]
    last_checkpoint: str
    last_seen: str
    lag_ms: NotRequired[float | None]
    hop: NotRequired[str | None]
    hop_ms: NotRequired[float | None]
    reason: NotRequired[str | None]


class IncidentLinks(TypedDict):
    """Addresses; null where the dashboard's own is unknown."""

    dashboard: str | None
    incident: str | None
    runbook: str | None


class IncidentRecordDocument(OpenIncidentDocument):
    """All of one incident, with its changes, its deliveries and the repairs of its windows, oldest first.
    `destinations`, `blame` and `examples` are the evidence that was stored with it."""

    destinations: list[AffectedDestination]
    blame: BlameDocument | None
    examples: list[ExampleDocument]
    notes: list[str]
    links: IncidentLinks
    changes: list[ChangeDocument]
    deliveries: list[DeliveryDocument]
    repairs: list[RepairRecordDocument]
