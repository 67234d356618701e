"""The preparation of a repair: the one that a request already has, or a new plan. Nothing is stored or sent."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss.broker.topics import BEACONS
from lagloss.errors import UsageError
from lagloss_server.base.errors import NotEnoughData
from lagloss_server.groups.cluster_groups import read_cluster_groups
from lagloss_server.model.definition import Definition
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.repair.ledger import RepairLedger, RepairPlan, RepairRequest, StoredRepair
from lagloss_server.repair.lost import read_lost
from lagloss_server.repair.plan import PlannedMessage, default_rate, order
from lagloss_server.repair.queue import QueueTransport
from lagloss_server.repair.site import RepairSite, find_site, input_of, not_idempotent, parse_place, receiver_of
from lagloss_server.repair.topic import TopicTransport
from lagloss_server.repair.transport import RepairTransport, Say
from lagloss_server.store.store import Store


@dataclass(frozen=True, slots=True)
class Prepared:
    """A repair that can be begun, or gone on with. `stored`: None if it is new; then `messages` are those that no other
    repair of the place has, `in_other_repairs` how many others there are, `unnamed` and `open_windows` as in `LostSet`.
    `not_idempotent`: nodes that messages come to again and that do not declare that it has no second effect; `rate`:
    records per second to send."""

    request: RepairRequest
    not_idempotent: tuple[str, ...]
    plan: RepairPlan
    messages: tuple[PlannedMessage, ...]
    rate: float
    stored: StoredRepair | None = None
    in_other_repairs: int = 0
    unnamed: int = 0
    open_windows: int = 0

    @property
    def waiting(self) -> int:
        """Messages that are still to be sent."""
        is_over = self.stored is not None and self.stored.state == "finished"
        return 0 if is_over else sum(planned.state in ("planned", "sending") for planned in self.messages)

    @property
    def must_be_confirmed(self) -> bool:
        """Whether there is something to send through a node that does not declare that it has no second effect."""
        return bool(self.not_idempotent) and self.waiting > 0

    @property
    def has_records(self) -> bool:
        """Whether there is anything to send."""
        return any(planned.record is not None for planned in self.messages)


def prepare(
    store: Store,
    bootstrap: str,
    pipeline: str,
    from_s: int,
    to_s: int,
    at: str,
    *,
    from_topic: str | None = None,
    with_perhaps: bool = False,
    rate: float | None = None,
    say: Say = lambda _: None,
) -> Prepared:
    """Return the unfinished repair of a request, else a new plan for what is lost and in no repair yet, else the repair
    that is finished. `at`: the place, as `link:A->B` or `node:N`; windows with from <= start < to.

    Raises:
        UnknownPipeline, UnreadableDefinition
        UsageError: the place is none, or no topic before it is named.
        NotEnoughData: no window is closed, or the log no longer tells all that is lost.
        KafkaException, AwsUnreachable: the brokers, or AWS, do not answer, or refuse.
        Boto3Missing: messages are files.
    """
    definition = store.pipeline(pipeline).definition
    place = parse_place(at, definition.graph)
    request = RepairRequest(pipeline, place.label, from_s, to_s, with_perhaps)
    ledger = RepairLedger(store.engine)
    stored = ledger.find(request)
    undeclared = not_idempotent(definition, receiver_of(place))
    if stored is not None and stored.state != "finished":
        return _stored(ledger, stored, undeclared, from_topic, rate, bootstrap)
    with closing(BeaconLog(bootstrap, BEACONS)) as log:
        lost = read_lost(store, log, pipeline, from_s, to_s, place, with_perhaps=with_perhaps)
    others = ledger.planned_elsewhere(request)
    messages = [message for message in lost.messages if message.key not in others]
    if stored is not None and not messages:
        return _stored(ledger, stored, undeclared, None, rate, bootstrap)
    if not lost.windows:
        raise NotEnoughData(detail=f"{pipeline} has no closed window from {rfc3339(from_s)} to {rfc3339(to_s)}.")
    site = find_site(definition, place, from_topic, _read_topics(store, definition, receiver_of(place)))
    with closing(open_transport(site, bootstrap)) as transport:
        positions = transport.locate(messages, say)
        if stored is not None and not positions:  # what is still lost is gone
            return _stored(ledger, stored, undeclared, None, rate, bootstrap)
        ends = transport.ends()
        rate = rate or default_rate(transport.rate())
    return Prepared(
        request,
        undeclared,
        RepairPlan(site.cluster, site.sources, ends, lost.windows, lost.sample, site.queue),
        tuple(order(messages, positions)),
        rate,
        in_other_repairs=len(lost.messages) - len(messages),
        unnamed=lost.unnamed,
        open_windows=lost.open_windows,
    )


def _read_topics(store: Store, definition: Definition, node: str) -> list[str]:
    """Return the topics that a node's consumer group was last seen to read."""
    cluster, group = input_of(definition, node)
    with store.engine.connect() as connection:
        readings = read_cluster_groups(connection) if group is not None else []
    groups = [reading.group for reading in readings]
    return [lag.topic for own in groups if (own.cluster, own.group) == (cluster, group) for lag in own.topics]


def open_transport(site: RepairSite | RepairPlan, bootstrap: str) -> RepairTransport:
    """Return what reads and sends the messages of a site.

    Raises:
        BadSetting: as `cluster_of`.
        Boto3Missing: messages are files.
    """
    if site.queue is not None:
        return QueueTransport(site.queue)
    return TopicTransport(cluster_of(site.cluster, bootstrap), site.cluster, site.sources)


def cluster_of(name: str, bootstrap: str) -> Cluster:
    """Return the connection to a named cluster; empty: the one of lagloss's own topics.

    Raises:
        BadSetting: the environment does not know it.
    """
    return KafkaConnection.named(name) if name else bootstrap


def _stored(
    ledger: RepairLedger,
    stored: StoredRepair,
    undeclared: tuple[str, ...],
    from_topic: str | None,
    rate: float | None,
    bootstrap: str,
) -> Prepared:
    planned = {source.topic for source in stored.plan.sources} or set(stored.plan.topics)
    if from_topic is not None and from_topic not in planned:
        raise UsageError(
            detail=f"repair {stored.id} is planned with records of {', '.join(sorted(planned))}, not of {from_topic};"
            " it has to end first"
        )
    if rate is None and stored.state != "finished":
        with closing(open_transport(stored.plan, bootstrap)) as transport:
            rate = default_rate(transport.rate())
    messages = tuple(ledger.messages(stored.id))
    return Prepared(stored.request, undeclared, stored.plan, messages, rate or stored.rate or default_rate(0), stored)
