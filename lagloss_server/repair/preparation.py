"""The preparation of a repair: the one that a request already has, or a new plan. Nothing is stored or sent."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss.broker.topics import BEACONS
from lagloss.errors import UsageError
from lagloss_server.base.errors import NotEnoughData, UnknownPipeline, UnreadableDefinition
from lagloss_server.groups.cluster_groups import ClusterGroup, NamedBy, read_cluster_groups
from lagloss_server.model.definition import Definition
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.repair.ledger import RepairLedger, RepairPlan, RepairRequest, StoredRepair
from lagloss_server.repair.lost import read_lost
from lagloss_server.repair.plan import PlannedMessage, default_rate, order
from lagloss_server.repair.queue import QueueTransport
from lagloss_server.repair.site import RepairSite, find_site, input_of, not_idempotent, parse_place, receiver_of
from lagloss_server.repair.topic import TopicTransport, settings_of
from lagloss_server.repair.transport import RepairTransport, Say
from lagloss_server.store.store import Store


@dataclass(frozen=True, slots=True)
class Prepared:
    """A repair that can be begun, or gone on with. `stored`: None if it is new; then `messages` are those that no other
    repair of the place has, `repaired` how many of the others arrived by one, and `open_windows` as in `LostSet`.
    `not_idempotent`: nodes that messages come to again and that do not declare that it has no second effect, and
    compacted topics; `other_groups`: consumer groups that get them, too, and that no definition names; `rate`: records
    per second to send."""

    request: RepairRequest
    not_idempotent: tuple[str, ...]
    plan: RepairPlan
    messages: tuple[PlannedMessage, ...]
    rate: float
    stored: StoredRepair | None = None
    repaired: int = 0
    open_windows: int = 0
    other_groups: tuple[str, ...] = ()

    @property
    def waiting(self) -> int:
        """Messages that are still to be sent."""
        is_over = self.stored is not None and self.stored.state == "finished"
        return 0 if is_over else sum(planned.state in ("planned", "sending") for planned in self.messages)

    @property
    def must_be_confirmed(self) -> bool:
        """Whether there is something to send that can have a second effect."""
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
        UsageError: the place is none, no topic before it is named, or records sent into it would get other event times.
        NotEnoughData: no window is closed, the log no longer tells all that is lost, or a repair's names are not kept.
        KafkaException, AwsUnreachable: the brokers, or AWS, do not answer, or refuse.
        Boto3Missing: messages are files.
    """
    definition = store.pipeline(pipeline).definition
    place = parse_place(at, definition.graph)
    request = RepairRequest(pipeline, place.label, from_s, to_s, with_perhaps)
    ledger = RepairLedger(store.engine)
    stored = ledger.find(request)
    with store.engine.connect() as connection:
        groups = [reading.group for reading in read_cluster_groups(connection)]
    again = _Again(store, bootstrap, definition, receiver_of(place), groups)
    if stored is not None and stored.state != "finished":
        return _stored(ledger, stored, again, from_topic, rate, bootstrap)
    with closing(BeaconLog(bootstrap, BEACONS)) as log:
        lost = read_lost(store, log, pipeline, from_s, to_s, place, with_perhaps=with_perhaps)
    others = ledger.planned_elsewhere(request)
    messages = [message for message in lost.messages if message.key not in others]
    if stored is not None and not messages:
        return _stored(ledger, stored, again, None, rate, bootstrap)
    if not lost.windows:
        raise NotEnoughData(detail=f"{pipeline} has no closed window from {rfc3339(from_s)} to {rfc3339(to_s)}.")
    site = find_site(definition, place, from_topic, _read_topics(groups, definition, receiver_of(place)))
    with closing(open_transport(site, bootstrap)) as transport:
        positions = transport.locate(messages, say)
        if stored is not None and not positions:  # what is still lost is gone
            return _stored(ledger, stored, again, None, rate, bootstrap)
        ends = transport.ends()
        rate = rate or default_rate(transport.rate())
    repaired = sum(others.get(message.key, False) for message in lost.messages)
    in_others = len(lost.messages) - len(messages) - repaired
    plan = RepairPlan(site.cluster, site.sources, ends, lost.windows, lost.sample, site.queue, lost.unnamed, in_others)
    return Prepared(
        request,
        again.undeclared(plan),
        plan,
        tuple(order(messages, positions)),
        rate,
        repaired=repaired,
        open_windows=lost.open_windows,
        other_groups=again.other_groups(plan),
    )


@dataclass(frozen=True, slots=True)
class _Again:
    """Who gets a message that is sent again. `node`: that it is meant for; `groups`: all of the clusters."""

    store: Store
    bootstrap: str
    definition: Definition
    node: str
    groups: Sequence[ClusterGroup]

    def undeclared(self, plan: RepairPlan) -> tuple[str, ...]:
        """Return the nodes that do not declare that it has no second effect, and compacted topics.

        Raises:
            UsageError: a topic would give the records other event times.
            KafkaException: the brokers do not answer.
        """
        names = [*not_idempotent(self.definition, self.node)]
        for tap in self.definition.taps:
            if tap.group is not None and tap.cluster == plan.cluster and tap.topic in plan.topics:
                names += not_idempotent(self.definition, tap.node)
        for named in (named for group in self._groups(plan) for named in group.named_by):
            names += self._of_other(named) if named.pipeline != self.definition.name else []
        return (*dict.fromkeys(names), *self._compacted(plan))

    def other_groups(self, plan: RepairPlan) -> tuple[str, ...]:
        """Return the consumer groups that read a topic which is sent into, and that no definition names."""
        own = {tap.group for tap in self.definition.taps} | {spec.input for spec in self.definition.spec.nodes}
        groups = {group.group for group in self._groups(plan) if not group.named_by and group.group not in own}
        return tuple(sorted(groups))

    def _groups(self, plan: RepairPlan) -> list[ClusterGroup]:
        return [
            group
            for group in self.groups
            if group.cluster == plan.cluster and any(lag.topic in plan.topics for lag in group.topics)
        ]

    def _of_other(self, named: NamedBy) -> list[str]:
        try:
            other = self.store.pipeline(named.pipeline).definition
        except (UnknownPipeline, UnreadableDefinition):
            return []
        return [f"{name} of {named.pipeline}" for name in not_idempotent(other, named.node)]

    def _compacted(self, plan: RepairPlan) -> list[str]:
        if plan.queue is not None:
            return []
        settings = settings_of(cluster_of(plan.cluster, self.bootstrap), plan.topics)
        for source in plan.sources:
            is_stamped = settings.get(source.target, {}).get("message.timestamp.type") == "LogAppendTime"
            if is_stamped and source.extraction.event_time.part.source == "timestamp":
                raise UsageError(
                    detail=f"the event time of records in {source.target} is their timestamp, which the broker sets"
                    " (message.timestamp.type=LogAppendTime): what is sent again would be other messages, of now"
                )
        return [
            f"topic {topic} (compacted: what is sent again becomes the newest of its key)"
            for topic, config in settings.items()
            if "compact" in config.get("cleanup.policy", "")
        ]


def _read_topics(groups: Sequence[ClusterGroup], definition: Definition, node: str) -> list[str]:
    """Return the topics that a node's consumer group was last seen to read."""
    cluster, group = input_of(definition, node)
    return [
        lag.topic
        for own in groups
        if group is not None and (own.cluster, own.group) == (cluster, group)
        for lag in own.topics
    ]


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
    again: _Again,
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
    if not messages:
        raise NotEnoughData(
            detail=f"the names of the messages of {stored.name} are not kept any more; what it stated is with the"
            " incident and in reports"
        )
    rate = rate or stored.rate or default_rate(0)
    is_over = stored.state == "finished"
    undeclared = () if is_over else again.undeclared(stored.plan)
    return Prepared(stored.request, undeclared, stored.plan, messages, rate, stored)
