"""Random histories of two taps, a topic's and a reader's, and what each record should have come to.

Runners are killed and paused between any two steps that others can see, two own a tap one after the other, records are
deleted, transactions aborted or left open, partitions added. Some records are replays, of ids that other records have,
or none. Producers stamp their records with anything, and the reader commits anywhere, beyond the end of the log, too: a
group, or a mirror that stores its offsets as Kafka Connect does, in transactions or not, among odd records. The truth
is written down by whoever produces and commits, and of a group's commits by a reader of their log that knows no tap.
All records are in the topic, so at no look may any be lost for certain on its way to the reader.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from sqlalchemy import Engine, func, insert, select, update

from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.sdk.outlets.kafka import MemoryOutlet, Outgoing
from lagloss.wire.format import BeaconBlock, EmitterReport, Tally, decode_block, decode_report, hash_id
from lagloss.wire.positions import read_positions
from lagloss_server.extraction import Extractor
from lagloss_server.groups.connect_offsets import OFFSET_REASONS
from lagloss_server.model.expressions import IdExpression, TimeExpression
from lagloss_server.model.taps import Extraction, OffsetStorage, Tap
from lagloss_server.store.schema.core import LaneRow, table_of
from lagloss_server.store.schema.taps import TapRow, TapUnreadableRow
from taps.clusters import TapCluster
from taps.commit_log import OFFSETS_TOPIC, CommitReader, parse_commit, partition_of_group
from taps.kernel import SEQ_BITS, BlockMaker
from taps.local_engine import LocalEngine
from taps.metrics import TapMetrics
from taps.plan import TapPlan
from taps.plan_runner import REPORT_BITS
from taps.rounds import report_together
from taps.runner import TapRunner
from taps.source_offsets import ConnectorCommits
from taps.store import NextPlan, NotOwned, TapStore
from taps.topic_reader import TopicReader
from taps.wanted import RunningTap

T = TypeVar("T")
Sighting = tuple[int, str | None]
"""Hash of an id, and the replay that its record is of."""
WINDOW_MS = 60_000
STAMPS: Mapping[str, Callable[[int], int]] = {
    "honest": lambda now_ms: now_ms,
    "of its input": lambda now_ms: now_ms - 20_000,
    "seconds": lambda now_ms: now_ms // 1_000,
    "one": lambda _: 1,
    "microseconds": lambda now_ms: now_ms * 1_000,
    "an hour behind": lambda now_ms: now_ms - 3_600_000,
    "ahead": lambda now_ms: now_ms + 50 * 60_000,
    "far ahead": lambda _: 1 << 62,
}
"""What producers stamp a record with."""
REPLAYS: Mapping[bytes | None, str] = {
    b"june": "june",
    b"again": "again",
    "été".encode(): "été",
    b"\xff": "\ufffd",
    b"": "unnamed",
    None: "unnamed",
    b"x" * 501: "unnamed",
}
"""The name of a replay by its header."""
PATIENCE_S = 300.0
LIMIT = 7
"""Offsets per plan: so few that histories of some dozen records take many."""


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Saboteur:
    """Kills its runner at the n-th step that others can see."""

    left: int | None = None

    def step(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed


class FragileStore(TapStore):
    def __init__(self, engine: Engine, database_url: str, saboteur: Saboteur) -> None:
        super().__init__(engine, database_url)
        self._saboteur = saboteur

    def advance(self, *given: Any) -> None:
        self._saboteur.step()
        super().advance(*given)
        self._saboteur.step()

    def advance_all(self, steps: Sequence[NextPlan]) -> set[bytes]:
        self._saboteur.step()
        stored = super().advance_all(steps)
        self._saboteur.step()
        return stored


class FragileOutlet(MemoryOutlet):
    saboteur: Saboteur = Saboteur()

    def send(self, record: Outgoing) -> None:
        self.saboteur.step()
        super().send(record)

    def poll(self, timeout_s: float) -> None:
        self.saboteur.step()
        super().poll(timeout_s)
        self.saboteur.step()


@dataclass
class Runner:
    """One process's runner of a tap."""

    runner: TapRunner
    store: FragileStore
    saboteur: Saboteur
    reader: TopicReader
    closing: list[Callable[[], None]]

    def close(self) -> None:
        self.reader.close()
        for close in self.closing:
            close()


@dataclass(frozen=True)
class Truth:
    """A record as its producer knows it. `appended_ms`: bounds of when the log took it."""

    partition: int
    offset: int
    timestamp_ms: int
    appended_ms: tuple[int, int]
    message_id: str | None
    event_ms: int
    bad: str | None = None
    key: str | None = None
    replay: str | None = None

    @property
    def sighting(self) -> Sighting:
        """Return what no other record is."""
        assert self.message_id
        return hash_id(self.message_id), self.replay


class Mirror:
    """A connector that stores offsets as a worker of Kafka Connect does: those of the last records it has taken.

    It writes in transactions half of the time, some of which it aborts, and beside those of other connectors.
    """

    def __init__(self, history: History) -> None:
        self._history, self._random = history, history.random
        topic = NewTopic(history.offsets, 3, 1, config={"cleanup.policy": "compact"})
        history.admin.create_topics([topic])[history.offsets].result(10)
        self._producer = Producer({"bootstrap.servers": history.bootstrap, "linger.ms": 0, "log_level": 0})
        self._exactly_once: Producer | None = None
        self.stored: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """By partition, (next offset, epoch ms before it was written)."""
        self.odd = 0

    def store(self, partition: int, offset: int) -> None:
        """Store that everything before an offset was mirrored."""
        self.stored[partition].append((offset, time.time_ns() // 1_000_000))
        if self._random.random() < 0.3:
            self._write_odd(partition)
        if self._random.random() < 0.5:
            self._write(self._producer, partition, offset)
        else:
            self._transact(partition, offset)

    def _transact(self, partition: int, offset: int) -> None:
        if self._exactly_once is None:
            self._exactly_once = Producer(
                {
                    "bootstrap.servers": self._history.bootstrap,
                    "transactional.id": self._history.offsets,
                    "log_level": 0,
                }
            )
            self._exactly_once.init_transactions(10)
        if self._random.random() < 0.5:
            self._exactly_once.begin_transaction()
            self._write(self._exactly_once, partition, 1_000_000)  # which nobody may believe
            self._exactly_once.abort_transaction(10)
        self._exactly_once.begin_transaction()
        self._write(self._exactly_once, partition, offset)
        self._exactly_once.commit_transaction(10)

    def _write(self, producer: Producer, partition: int, offset: int) -> None:
        source = {"cluster": "a", "partition": partition, "topic": self._history.topic}
        value = json.dumps({"offset": offset - 1}) if offset else None
        self._send(producer, [self._history.group, source], value)

    def _write_odd(self, partition: int) -> None:
        source = {"cluster": "a", "partition": partition, "topic": self._history.topic}
        key, value, is_odd = self._random.choice(
            [
                (["other", source], '{"offset": 1000000}', False),
                ([self._history.group, {**source, "topic": "another"}], '{"offset": 1000000}', False),
                ([self._history.group, {**source, "group": "g"}], '{"offset": 1000000}', True),
                ([self._history.group, source], '{"offset": "1000000"}', True),
                ([self._history.group, source], "{broken", True),
                ([source], '{"offset": 1000000}', True),
            ]
        )
        self.odd += is_odd
        self._send(self._producer, key, value)

    def _send(self, producer: Producer, key: Any, value: str | None) -> None:
        producer.produce(self._history.offsets, value, json.dumps(key, separators=(",", ":")))
        assert producer.flush(10) == 0


@dataclass
class History:
    """One topic and one group, two taps of them, and the processes that run them."""

    bootstrap: str
    engine: Engine
    database_url: str
    seed: int
    reads_all: bool = True
    names_all: bool = True
    """False: more replays than blocks may name, so that an id is replayed once at most."""
    since_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000 // WINDOW_MS * WINDOW_MS - WINDOW_MS)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        name = f"h{self.seed}-{uuid.uuid4().hex[:6]}"
        self.topic, self.group, self.offsets = f"topic-{name}", f"group-{name}", f"offsets-{name}"
        self.is_mirror = self.seed % 3 == 0
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        self.partitions = self.random.randint(1, 3)
        self.is_append_time = self.random.random() < 0.3
        self.stamps = self.random.choices(list(STAMPS), k=self.random.choice([1, 1, 2, 4]))
        config = {
            "message.timestamp.type": "LogAppendTime" if self.is_append_time else "CreateTime",
            "message.timestamp.after.max.ms": str((1 << 63) - 1),
            "retention.ms": "-1",  # else the broker deletes what is stamped in seconds within minutes
        }
        self.admin.create_topics([NewTopic(self.topic, self.partitions, 1, config=config)])[self.topic].result(10)
        self.mirror = Mirror(self) if self.is_mirror else None
        self.plain = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0, "log_level": 0})
        self._transactional: Producer | None = None
        self._open: list[Truth] | None = None
        self.committer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group, "log_level": 0})
        self.records: list[Truth] = []
        self._replayed: set[tuple[str | None, str | None]] = set()
        self.invisible = 0
        self.number = 0
        self.committed: dict[int, int] = {}
        self.trouble: Exception | None = None
        self.is_void: dict[int, list[bool]] = defaultdict(list)
        """Of each commit, by partition, whether it was beyond the end of the log."""
        self.deleted: dict[int, int] = {}
        extraction = Extraction(IdExpression.parse("$.id"), TimeExpression.parse("$.at"))
        common = {"pipeline": name, "cluster": "", "topic": self.topic, "extraction": extraction}
        self.taps = {
            "topic": RunningTap(
                Tap(node="a", group=None, places=("in", "out"), first=True, order="key", **common),
                uuid.uuid4().bytes,
                self.since_ms,
            ),
            "group": RunningTap(
                Tap(
                    node="b",
                    group=self.group,
                    places=("in", "out"),
                    first=False,
                    offsets=OffsetStorage("", self.offsets) if self.is_mirror else None,
                    **common,
                ),
                uuid.uuid4().bytes,
                self.since_ms,
            ),
        }
        self.log: list[tuple[str, int, bytes, bytes]] = []
        self.ends: Counter[tuple[str, int]] = Counter()
        self.shared = TapCluster("", self.bootstrap)
        self.runners: dict[str, list[Runner]] = {kind: [self.new_runner(kind)] for kind in self.taps}
        self.kills = 0
        self._judged = 0
        self._is_followed = False
        self._sent: dict[int, tuple[float, int]] = {}
        self._received: dict[int, tuple[float, int]] = {}
        self._lanes: dict[str, int] = {}
        self._dropped: set[int] = set()

    # -- the pipeline -------------------------------------------------------------------------------------------------

    def produce(self) -> None:
        self._produce(self.plain, self.random.randint(1, 12), self.records)

    def _produce(self, producer: Producer, count: int, into: list[Truth]) -> None:
        for _ in range(count):
            self.number += 1
            now_ms = time.time_ns() // 1_000_000
            event_ms = now_ms - self.random.choice([0, 5, 900, 30_000])
            message_id: str | None = f"{self.seed}-{self.number}"
            document: Any = {"id": message_id, "at": event_ms}
            bad = None
            kind = self.random.random()
            if kind < 0.05:
                bad, document, message_id = "no_id", {"at": event_ms}, None
            elif kind < 0.1:
                bad, message_id = "not_json", None
            elif kind < 0.15:
                event_ms = self.since_ms - self.random.randint(1, 100_000)
                document["at"] = event_ms
            replay: str | None = None
            headers: list[tuple[str, bytes | None]] = self.random.choice([[], [("a", b"b")], [("lagloss-id", b"x")]])
            if self.random.random() < 0.2:
                header, replay = self.random.choice([*REPLAYS.items()])
                headers = [("lagloss-replay", b"earlier"), *headers, ("lagloss-replay", header)]
                before = [truth for truth in self.records if truth.message_id]
                if before and message_id and self.random.random() < 0.8:
                    truth = self.random.choice(before)
                    message_id, event_ms = truth.message_id, truth.event_ms
                    document = {"id": message_id, "at": event_ms}
                replay = self.label(replay)
                if (message_id, replay) in self._replayed:
                    continue
                self._replayed.add((message_id, replay))
            value = "{broken" if bad == "not_json" else json.dumps(document)
            stamp_ms = STAMPS[self.random.choice(self.stamps)](now_ms)
            key = self.random.choice([None, "a", "b"])
            at, facts = self.random.randrange(self.partitions), (now_ms, message_id, event_ms, bad, key, replay)

            def delivered(error: Any, message: Message, facts: tuple[Any, ...] = facts) -> None:
                assert error is None, error
                sent_ms, name, event, *rest = facts
                bounds = (sent_ms, time.time_ns() // 1_000_000)
                place = message.partition() or 0, message.offset() or 0
                into.append(Truth(*place, message.timestamp()[1], bounds, name, event, *rest))

            producer.produce(self.topic, value, key, at, on_delivery=delivered, timestamp=stamp_ms, headers=headers)
        assert producer.flush(10) == 0

    def label(self, replay: str | None) -> str | None:
        """What a replay's name is compared as."""
        return replay if self.names_all or replay is None else "named or not"

    def transact(self) -> None:
        """Begin a transaction, or end the open one."""
        if self._transactional is None:
            self._transactional = Producer(
                {
                    "bootstrap.servers": self.bootstrap,
                    "transactional.id": self.topic,
                    "transaction.timeout.ms": int(PATIENCE_S * 1_000),
                    "log_level": 0,
                }
            )
            self._transactional.init_transactions(10)
        if self._open is None:
            self._transactional.begin_transaction()
            self._open = []
            self._produce(self._transactional, self.random.randint(1, 8), self._open)
        elif self.random.random() < 0.5:
            self._transactional.commit_transaction(10)
            self.records += self._open
            self._open = None
        else:
            self._transactional.abort_transaction(10)
            self.invisible += len(self._open)
            self._open = None

    def stable_ends(self) -> dict[int, int]:
        return {at: self._bounds(at)[1] for at in range(self.partitions)}

    def _bounds(self, partition: int) -> tuple[int, int]:
        """The first and the end offset of a partition."""
        return self._of_partition(
            lambda: self.committer.get_watermark_offsets(TopicPartition(self.topic, partition), timeout=10)
        )

    def _of_partition(self, ask: Callable[[], T]) -> T:
        """What brokers and client answer once both know a new partition."""
        deadline = time.monotonic() + 10
        while True:
            try:
                return ask()
            except KafkaException:
                assert time.monotonic() < deadline
                self.committer.list_topics(self.topic, timeout=10)

    def commit(self, *, all_of_it: bool = False) -> None:
        """Have the group commit something, now and then less than before."""
        ends = self.stable_ends()
        for at, end in ends.items():
            if not all_of_it and self.random.random() < 0.3:
                continue
            known = self.committed.get(at, 0)
            offset = end if all_of_it or known >= end else self.random.randint(known, end)
            if not all_of_it and self.random.random() < 0.1:
                offset = self.random.randint(0, known)
            self._commit(at, offset)
            self.committed[at] = max(known, offset)

    def _commit(self, at: int, offset: int) -> None:
        if self.mirror is not None:
            self.mirror.store(at, offset)
        else:
            self.committer.commit(offsets=[TopicPartition(self.topic, at, offset)], asynchronous=False)
        self.is_void[at].append(offset > self._end(at))

    def _end(self, partition: int) -> int:
        """The end of a partition, records of an open transaction included."""
        look = self._of_partition(lambda: self.shared.topics.look(self.topic, range(self.partitions)))
        return look.logs[partition].end

    def commit_beyond(self) -> None:
        """Have the group say that it is beyond the end of the log, and the tap see it before the log has passed it."""
        if self._open is None:
            self._wait_for_markers()  # by which the log would pass a commit just beyond its end
        at = self.random.randrange(self.partitions)
        offset, before = self._end(at) + self.random.choice([1, 3, 1_000]), self._stored("group").void.get(at)
        self._commit(at, offset)
        deadline = time.monotonic() + PATIENCE_S
        while self._stored("group").void.get(at) in (None, before):
            assert time.monotonic() < deadline, (
                f"seed {self.seed}: the tap does not see {offset} beyond the end of {at}: "
                f"{self.trouble!r}, {self._stored('group')}"
            )
            if self.random.random() < 0.3:
                self.expire("group")
            self.turn("group")

    def _stored(self, kind: str) -> TapPlan:
        """The plan that whoever takes over begins with."""
        row = table_of(TapRow)
        with self.engine.begin() as connection:
            asked = select(row.c.plan).where(row.c.emitter == self.taps[kind].emitter)
            plan = connection.execute(asked).scalar_one_or_none()
        return TapPlan(0, 0, 1, 1) if plan is None else TapPlan.of(plan)

    def widen(self) -> None:
        if self.partitions < 5:
            self.partitions += 1
            self.admin.create_partitions([NewPartitions(self.topic, self.partitions)])[self.topic].result(10)
            deadline = time.monotonic() + 10
            for client in filter(None, (self.admin, self.plain, self.committer, self._transactional)):
                while len(client.list_topics(self.topic).topics[self.topic].partitions) < self.partitions:
                    assert time.monotonic() < deadline

    def delete(self) -> None:
        """Have retention take the first records of a partition."""
        at = self.random.randrange(self.partitions)
        low, high = self._bounds(at)
        if high > low:
            offset = self.random.randint(low, high)
            found = self.admin.delete_records([TopicPartition(self.topic, at, offset)])
            for future in found.values():
                with suppress(KafkaException):  # not beyond an open transaction
                    self.deleted[at] = max(self.deleted.get(at, 0), future.result(30).low_watermark)

    # -- the taps -----------------------------------------------------------------------------------------------------

    def new_runner(self, kind: str) -> Runner:
        running, saboteur = self.taps[kind], Saboteur()
        reader = self.shared.reader(self.topic)
        outlet = FragileOutlet(partition_count=3, records=self.log, _ends=self.ends)
        outlet.saboteur = saboteur
        store = FragileStore(self.engine, self.database_url, saboteur)
        maker = BlockMaker(running.tap, running.emitter, self.since_ms, Extractor(running.tap.extraction, None))
        engine = LocalEngine(reader, maker, LIMIT)
        commits: CommitReader | None = None
        if kind == "group" and self.is_mirror:
            commits = ConnectorCommits(self.shared.source_offsets(self.offsets), self.group, self.topic)
        elif kind == "group":
            commits = self.shared.group_commits(self.group, self.topic)
        runner = TapRunner(running, store, outlet, reader, engine, commits, TapMetrics(), 0)
        return Runner(runner, store, saboteur, reader, [store.close])

    def turn(self, kind: str, *, kill: bool = False) -> None:
        """Have one of the processes take a turn, in which it may be killed."""
        chosen = self.random.choice(self.runners[kind])
        if kill:
            chosen.saboteur.left = self.random.randint(0, 8)
        try:
            if self._has_rested(chosen.runner) and self.random.random() < 0.5:
                report_together([chosen.runner], chosen.store)
            else:
                chosen.runner.turn()
        except Killed:
            self.kills += 1
            self.runners[kind].remove(chosen)
            chosen.close()
            if not self.runners[kind]:
                self.runners[kind].append(self.new_runner(kind))
        except (NotOwned, KafkaException) as error:  # as `run` does
            self.trouble = error
            chosen.runner._forget()
        chosen.saboteur.left = None
        self._follow()

    def go_round(self, kind: str) -> None:
        """Ask for the ends of the topic for those that rest, as rounds do."""
        for chosen in self.runners[kind]:
            with suppress(KafkaException):
                self._has_rested(chosen.runner)

    def _has_rested(self, runner: TapRunner) -> bool:
        """Show a runner the ends of the topic; return whether it rests, and they bring nothing but the time."""
        look = runner.resting
        if look is None:
            return False
        ends = self.shared.topics.ends([(self.topic, partition) for partition in look.logs])
        return runner.reason(look, ends) == "report"

    def _follow(self) -> None:
        """Note that the group has said how far it is, as the aggregator does."""
        if self._is_followed or not self.reports("group"):
            return
        self._is_followed = True
        lane = {"pipeline": self.taps["group"].tap.pipeline, "checkpoint": "b.in", "lane": f"{self.topic}/0"}
        place = dict.fromkeys(("until", "appended_at", "topic_partition", "topic_offset"), 0)
        with self.engine.begin() as connection:
            connection.execute(insert(table_of(LaneRow)).values(**lane, holder=b"", reporter=b"", **place))

    def start_twice(self, kind: str) -> None:
        if len(self.runners[kind]) < 2:
            self.runners[kind].append(self.new_runner(kind))

    def expire(self, kind: str) -> None:
        """Let another process own the tap, as after 15 s without a sign of life; the one that did goes on."""
        row = table_of(TapRow)
        with self.engine.begin() as connection:
            connection.execute(update(row).where(row.c.emitter == self.taps[kind].emitter).values(owner=""))

    def act(self) -> None:
        """Do something, whatever."""
        kind = self.random.choice(["topic", "group"])
        actions: list[tuple[Callable[[], None], int]] = [
            (self.produce, 6),
            (self.transact, 3),
            (self.commit, 5),
            (self.commit_beyond, 1),
            (self.widen, 1),
            (self.delete, 1),
            (lambda: self.turn(kind), 9),
            (lambda: self.turn(kind, kill=True), 5),
            (lambda: self.go_round(kind), 6),
            (lambda: self.start_twice(kind), 2),
            (lambda: self.expire(kind), 3),
        ]
        self.random.choices([action for action, _ in actions], [weight for _, weight in actions])[0]()

    def finish(self) -> None:
        """End transactions, have the group commit all, and the taps read all."""
        if self._open is not None:
            self.transact()
        self._wait_for_markers()
        self.commit(all_of_it=True)
        self.ended_ms = time.time_ns() // 1_000_000
        for kind in self.taps:
            deadline = time.monotonic() + PATIENCE_S
            while not self._has_read_all(kind):
                assert time.monotonic() < deadline, f"seed {self.seed}: the {kind} tap does not end"
                if self.random.random() < 0.3:
                    self.expire(kind)
                self.go_round(kind)
                self.turn(kind)

    def _wait_for_markers(self) -> None:
        """Wait until the broker has ended every transaction: the client's call returns before that."""
        reader, deadline = self.runners["topic"][0].reader, time.monotonic() + 30
        while any(
            log.stable_end < log.end
            for log in self._of_partition(lambda: reader.look(reader.describe().partitions)).logs.values()
        ):
            assert time.monotonic() < deadline

    def _has_read_all(self, kind: str) -> bool:
        for found in self.runners[kind]:
            positions = found.runner.positions
            reports = self.reports(kind)
            if (
                positions
                and all(positions.get(at, 0) >= end for at, end in self.stable_ends().items())
                and reports
                and min(progress.until for progress in reports[-1].progress) >= self.ended_ms
            ):
                return True
        return False

    def close(self) -> None:
        for found in [runner for runners in self.runners.values() for runner in runners]:
            found.close()
        self.shared.close(10)
        self.committer.close()
        self.admin.delete_topics([self.topic, *([self.offsets] if self.is_mirror else [])])

    # -- what they sent -----------------------------------------------------------------------------------------------

    def blocks(self, kind: str) -> list[BeaconBlock]:
        emitter = self.taps[kind].emitter
        found = (decode_block(value) for topic, _, _, value in self.log if topic == BEACONS)
        return [block for block in found if block.emitter == emitter]

    def reports(self, kind: str) -> list[EmitterReport]:
        emitter = self.taps[kind].emitter
        return [decode_report(value) for topic, _, key, value in self.log if topic == REPORTS and key == emitter]

    def commits(self) -> dict[int, list[tuple[int, int]]]:
        """Every commit of the reader by partition, as (offset, epoch ms), in the order of the log."""
        found: dict[int, list[tuple[int, int]]] = defaultdict(list)
        if self.mirror is not None:
            return self._valid(self.mirror.stored)
        with_log = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "oracle",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        try:
            count = len(with_log.list_topics(OFFSETS_TOPIC, timeout=10).topics[OFFSETS_TOPIC].partitions)
            with_log.assign([TopicPartition(OFFSETS_TOPIC, partition_of_group(self.group, count), 0)])
            while (message := with_log.poll(10)) is not None and not message.error():
                commit = parse_commit(message.key(), message.value())
                if commit is not None and commit.group == self.group:
                    found[commit.partition].append((commit.offset, commit.at_ms))
        finally:
            with_log.close()
        return self._valid(found)

    def _valid(self, commits: Mapping[int, list[tuple[int, int]]]) -> dict[int, list[tuple[int, int]]]:
        """Leave out the commits that were beyond the end of the log."""
        return {
            at: [commit for commit, is_void in zip(some, self.is_void[at], strict=True) if not is_void]
            for at, some in commits.items()
        }

    def false_losses(self) -> list[str]:
        """Return what would be lost for certain on its way from the topic to the group, by what was sent so far."""
        for topic, _, key, value in self.log[self._judged :]:
            if topic == BEACONS:
                block = decode_block(value)
                seen = self._sent if block.emitter == self.taps["topic"].emitter else self._received
                if block.checkpoint in ("a.out", "b.in"):
                    for id_, lag_ms in zip(block.id_hash.tolist(), block.lag_ms.tolist(), strict=True):
                        lag_before_ms, by_ms = seen.get(id_, (lag_ms, 0))
                        seen[id_] = max(lag_ms, lag_before_ms), max(by_ms, block.supplied_at or 0)
            elif key == self.taps["group"].emitter:
                report = decode_report(value)
                self._lanes |= {at.lane: at.until for at in report.progress if at.checkpoint == "b.in"}
                self._dropped |= {tally.window_start for tally in report.tallies if tally.dropped}
        self._judged = len(self.log)
        until_ms = min((self._lanes.get(f"{self.topic}/{at}", 0) for at in range(self.partitions)), default=0)
        truths = {hash_id(truth.message_id): truth for truth in self.records if truth.message_id}
        found = []
        for id_, (lag_ms, by_ms) in self._sent.items():
            truth = truths.get(id_)
            if truth is None or id_ in self._received or truth.event_ms // WINDOW_MS * 60 in self._dropped:
                continue
            if max(truth.event_ms + lag_ms, by_ms) + 1 < until_ms:  # a lag is a float32
                found.append(f"{truth} has a lag of {lag_ms} ms, and the group is level at {until_ms}")
        return found


def differences(history: History) -> list[str]:
    """Return everything in which the taps' blocks and reports differ from the truth."""
    commits = history.commits()
    problems: list[str] = []
    for kind, running in history.taps.items():
        problems += [f"{kind}: {problem}" for problem in _differences(history, kind, running, commits)]
    return problems


def _differences(
    history: History, kind: str, running: RunningTap, commits: Mapping[int, list[tuple[int, int]]]
) -> Iterator[str]:
    by_seq: dict[int, BeaconBlock] = {}
    for block in history.blocks(kind):
        known = by_seq.setdefault(block.seq, block)
        same = np.array_equal(known.id_hash, block.id_hash) and known.checkpoint == block.checkpoint
        same &= (known.out_of_order, known.replay) == (block.out_of_order, block.replay)
        if not same and not history.deleted:
            yield f"block {block.seq} was sent with two contents"
    reports = history.reports(kind)
    newest: dict[tuple[str, int, str | None], tuple[int, Tally]] = {}
    for report in reports:
        for tally in report.tallies:
            key = (tally.checkpoint, tally.window_start, tally.replay)
            if report.seq >= newest.get(key, (-1, tally))[0]:
                newest[key] = (report.seq, tally)
    dropped = sum(tally.dropped for _, tally in newest.values())
    plan_of = {
        (block.checkpoint, id_, history.label(block.replay)): seq >> SEQ_BITS
        for seq, block in by_seq.items()
        for id_ in block.id_hash.tolist()
    }
    for place in running.tap.places:
        checkpoint = f"{running.tap.node}.{place}"

        def is_incomplete(truth: Truth, checkpoint: str = checkpoint) -> bool:
            window = truth.event_ms // WINDOW_MS * WINDOW_MS // 1_000
            return (checkpoint, window, None) in newest and newest[checkpoint, window, None][1].dropped > 0

        found: Counter[Sighting] = Counter()
        lags: dict[Sighting, float] = {}
        for block in by_seq.values():
            if block.checkpoint == checkpoint:
                sightings = [(id_, history.label(block.replay)) for id_ in block.id_hash.tolist()]
                found.update(sightings)
                lags.update(zip(sightings, block.lag_ms.tolist(), strict=True))
        expected = {t.sighting: t for t in history.records if t.message_id and t.event_ms >= history.since_ms}
        for id_, count in found.items():
            if id_ not in expected:
                yield f"{checkpoint} has a record that is not there"
            elif count > 1:
                yield f"{checkpoint} has {expected[id_]} {count} times"
        missing = [truth for id_, truth in expected.items() if id_ not in found]
        for truth in missing:
            if truth.offset >= history.deleted.get(truth.partition, 0) and history.reads_all:
                yield f"{checkpoint} lacks {truth}"
            if not is_incomplete(truth):
                yield f"{checkpoint} lacks {truth}, and counts none as dropped in its window"
        for truth in history.records:
            is_read = truth.bad and truth.offset >= history.deleted.get(truth.partition, 0)
            if is_read and truth.event_ms >= history.since_ms and not is_incomplete(truth):
                yield f"{checkpoint} counts none as dropped in the window of {truth}"
        for id_, truth in expected.items():
            if id_ in lags:
                low, high = _observed(history, kind, truth, commits)
                lag = np.float32(lags[id_])
                if not np.float32(low - truth.event_ms) <= lag <= np.float32(high - truth.event_ms):
                    yield f"{checkpoint} observed {truth} {float(lag) + truth.event_ms - low} ms after {low}"
        for (at, window, replay), (_, tally) in newest.items():
            # A plan that is repeated after a deletion has fewer records, and says so: its window is incomplete.
            if at == checkpoint and not (history.deleted and tally.dropped):
                blocks = [
                    block
                    for block in by_seq.values()
                    if (block.checkpoint, block.window_start, block.replay) == (at, window, replay)
                ]
                if tally.beacons != sum(block.count for block in blocks):
                    total = sum(block.count for block in blocks)
                    yield f"{checkpoint} tallies {tally.beacons} beacons of {window}, its blocks have {total}"
                if tally.id_sum % (1 << 64) != sum(sum(map(int, b.id_hash.tolist())) for b in blocks) % (1 << 64):
                    yield f"{checkpoint} tallies another sum of ids"
        if not history.deleted and history.reads_all:
            yield from _wrong_order(history, kind, checkpoint, by_seq.values(), expected)
        if history.reads_all:
            yield from _false_claims(history, kind, checkpoint, reports, plan_of)
    if kind == "group" and history.mirror is not None:
        yield from _wrong_counts(history, history.mirror)
    bad = Counter(t.bad for t in history.records if t.bad and t.offset >= history.deleted.get(t.partition, 0))
    if kind == "topic" and bad and dropped == 0:
        yield f"unreadable records {bad} are not counted as dropped"


def _wrong_counts(history: History, mirror: Mirror) -> Iterator[str]:
    """Yield a wrong number of odd records among the stored offsets: each counts once, whoever has read it."""
    row = table_of(TapUnreadableRow)
    with history.engine.begin() as connection:
        counted = select(func.coalesce(func.sum(row.c.count), 0)).where(
            row.c.emitter == history.taps["group"].emitter, row.c.reason.in_(OFFSET_REASONS)
        )
        count = connection.execute(counted).scalar_one()
    if count != mirror.odd:
        yield f"{count} odd records of the offset topic are counted, which has {mirror.odd}"


def _wrong_order(
    history: History,
    kind: str,
    checkpoint: str,
    blocks: Iterable[BeaconBlock],
    expected: Mapping[Sighting, Truth],
) -> Iterator[str]:
    """Yield the records that are out of order by the definition and not by the blocks, or the other way round."""
    found = {
        (int(block.id_hash[at]), history.label(block.replay))
        for block in blocks
        if block.checkpoint == checkpoint and block.out_of_order
        for at in read_positions(block.out_of_order)
    }
    for sighting, truth in expected.items():
        overtaken = (
            kind == "topic"
            and truth.replay is None
            and any(
                (other.partition, other.key) == (truth.partition, truth.key)
                and other.offset < truth.offset
                and other.event_ms > truth.event_ms
                for other in history.records
                if other.message_id and truth.key and other.replay is None
            )
        )
        if overtaken != (sighting in found):
            yield f"{checkpoint}: {truth} is {'' if overtaken else 'not '}out of order"


def _observed(
    history: History, kind: str, truth: Truth, commits: Mapping[int, list[tuple[int, int]]]
) -> tuple[int, int]:
    """Return the bounds of when a record was observed."""
    if kind == "group":
        first = next(at_ms for offset, at_ms in commits[truth.partition] if offset > truth.offset)
        # A worker's clock is no evidence: an offset of Connect is dated by the look that shows it.
        return first, time.time_ns() // 1_000_000 if history.is_mirror else first
    if history.is_append_time:
        return truth.timestamp_ms, truth.timestamp_ms
    # By the look that found the record at the latest.
    return min(truth.timestamp_ms, truth.appended_ms[0]), time.time_ns() // 1_000_000


def _false_claims(
    history: History,
    kind: str,
    checkpoint: str,
    reports: Iterable[EmitterReport],
    plan_of: Mapping[tuple[str, int, str | None], int],
) -> Iterator[str]:
    """Yield the reports that claim to have observed what only a later plan holds."""
    for report in reports:
        number = report.seq >> REPORT_BITS
        lanes = {progress.lane: progress.until for progress in report.progress}
        leaving = [progress for progress in report.progress if progress.checkpoint.endswith(".out")]
        assert all(progress.lane for progress in leaving), "a lane without a name would not stand still in an outage"
        left_until = leaving[0].until if leaving else None
        for truth in history.records:
            if not truth.message_id or truth.event_ms < history.since_ms:
                continue
            if truth.offset < history.deleted.get(truth.partition, 0):
                continue
            until = left_until if kind == "topic" else lanes.get(f"{history.topic}/{truth.partition}")
            if kind == "group" and until is None:
                until = 0
            seen = plan_of.get((checkpoint, *truth.sighting))
            if until is not None and truth.appended_ms[1] < until and (seen is None or seen > number):
                yield f"{checkpoint}: report {number} claims all until {until}, {truth} is of plan {seen}"
                return
    del kind


def plan_document(plan: TapPlan) -> str:
    """A plan as text, for messages."""
    return json.dumps(plan.document())
