"""Chains a -> b -> c of real nodes that lose what they are told to, once, and a repairer that dies where it is told to.

What is replayed is never lost. The topics themselves are the ledger: every record and each of its copies is in them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy import select

from aggregator.clock import Catchup
from lagloss.broker.errors import kafka_error
from lagloss.broker.headers import headers_of
from lagloss.identity import Carrier, Identity, from_headers, replay_of
from lagloss.kafka import KafkaNode
from lagloss_server.model.window import rfc3339
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store
from tests.support.closers import Driven, wait_until
from tests.support.histories.fates import PRODUCER
from tests.support.kafka_log import consumer_of
from tests.support.tapped_tables import CURSORS

PARTITIONS: Final = 3
PLACES: Final = ("link a->b", "node b", "link b->c", "node c")
NOWHERE: Final = ""
GONE: Final = "gone"
"""Lost on the link a->b without a record."""
REPLAY: Final = "lagloss-replay"
SINK: Final = "sink"
"""The database of tables, in the environment."""
POINTS: Final = (
    "RepairLedger.create before",
    "RepairLedger.create after",
    "RepairLedger.take_over after",
    "RepairSender.begin before",
    "RepairSender.begin after",
    "RepairLedger.write after",
    "RepairSender._produce before",
    "RepairSender.send_offsets_to_transaction before",
    "RepairSender.commit_transaction before",
    "RepairSender.commit_transaction after",
    "Arrivals.look before",
    "RepairLedger.end before",
)
"""Where a repairer is killed: before or after a call."""
FILE_POINTS: Final = (
    *(point for point in POINTS if not point.startswith("RepairSender")),
    "QueueTransport.begin before",
    "QueueTransport.read after",
    "QueueTransport.send before",
    "QueueTransport.send after",
)
"""The same where files are sent again."""
_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["lagloss_server.cli.main", "lagloss_server.repair.runner"])


@dataclass
class Chain:
    """A pipeline of three nodes. `fates`: where each message is lost, by id; `topic`: that b reads, which another chain
    can share."""

    bootstrap: str
    pipeline: str
    start_s: int
    fates: dict[str, str] = field(default_factory=dict)
    topic: str = ""
    received: Counter[tuple[str, str, str | None]] = field(default_factory=Counter)
    """How often each node received a message, by node, id and replay."""

    def __post_init__(self) -> None:
        self.topic = self.topic or f"{self.pipeline}-b"
        self._over = threading.Event()
        self._stack = ExitStack()

    @property
    def definition(self) -> str:
        return f"""
            apiVersion: lagloss/v1
            kind: Pipeline
            metadata: {{name: {self.pipeline}}}
            spec:
              grace: 1s
              nodes:
                - {{name: a, to: [b]}}
                - {{name: b, to: [c], idempotent: true}}
                - {{name: c, idempotent: true}}
        """

    def lost_at(self, place: str) -> set[str]:
        """The messages that have a record and are lost there."""
        return {name for name, fate in self.fates.items() if fate == place}

    def input_of(self, place: str) -> str:
        """The topic before a place."""
        return self.topic if place in ("link a->b", "node b") else f"{self.pipeline}-c"

    def start(self) -> None:
        """Make the topics and let the nodes run."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        missing = {self.topic, f"{self.pipeline}-c"} - admin.list_topics(timeout=20).topics.keys()
        for made in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in sorted(missing)]).values():
            try:
                made.result(30)
            except KafkaException as error:  # a broker may not list yet what another chain has just made
                if kafka_error(error).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        self._open()
        for node, topic in (("b", self.topic), ("c", f"{self.pipeline}-c")):
            thread = threading.Thread(target=self._follow, args=(node, topic))
            thread.start()
            self._stack.callback(thread.join, 30)
        self._stack.callback(self._over.set)

    def close(self) -> None:
        """End the nodes."""
        self._over.set()
        self._stack.close()

    def send(self, windows: int, random: Random) -> None:
        """Send every message, in a random order, with event times in so many minutes."""
        for name in random.sample(sorted(self.fates), len(self.fates)):
            event_ms = self.start_s * 1_000 + random.randrange(windows * 60_000)
            if self.fates[name] == GONE:
                self._a.emitter.received(name, event_ms)
                self._a.emitter.sent(name, event_ms)
                continue
            self._send_one(name, event_ms, random)
            self._producer.poll(0)
        assert self._producer.flush(30) == 0

    def _open(self) -> None:
        self._a = self._stack.enter_context(KafkaNode(self.pipeline, "a", self.bootstrap, first=True))
        self._producer: Any = self._a.producer({"bootstrap.servers": self.bootstrap, **PRODUCER})

    def _send_one(self, name: str, event_ms: int, random: Random) -> None:
        value = random.choice((None, b"", random.randbytes(random.randint(1, 400))))
        key = random.choice((None, b"", name.encode()))
        headers: list[tuple[str, str | bytes | None]] = [("kind", None), ("kind", b"\xff\x00"), ("seen", b"")]
        self._producer.produce(self.topic, value, key, headers=headers, message_id=name, event_time_ms=event_ms)

    def _follow(self, node: str, topic: str) -> None:
        passed, skipped = (f"link a->{node}", f"node {node}") if node == "b" else ("link b->c", "node c")

        def identity(carrier: Carrier) -> Identity | None:
            message = from_headers(carrier)
            is_ours = message is not None and message.message_id in self.fates
            is_live = replay_of(carrier.headers) is None
            is_lost = message is not None and is_live and self.fates.get(message.message_id) == passed
            return message if is_ours and not is_lost else None

        group = {"group.id": f"{self.pipeline}-{node}", "auto.offset.reset": "earliest"}
        with KafkaNode(self.pipeline, node, self.bootstrap, identity=identity) as kafka:
            producer = kafka.producer({"bootstrap.servers": self.bootstrap, **PRODUCER})
            # without ends of partitions, a lane stands before the marker of a repair's last transaction
            ends = {"isolation.level": "read_committed", "enable.partition.eof": True}
            consumer = kafka.consumer({"bootstrap.servers": self.bootstrap, "log_level": 0, **ends, **group})
            consumer.subscribe([topic])
            while not self._over.is_set():
                message = consumer.poll(0.2)
                if message is None or message.error() is not None:
                    continue
                self._handle(kafka, producer, node, skipped, message)
            consumer.close()

    def _handle(self, kafka: KafkaNode, producer: Any, node: str, skipped: str, message: Message) -> None:
        identity = kafka.identity_of(message)
        if identity is None:
            return
        self.received[node, identity.message_id, identity.replay] += 1
        if identity.replay is None and self.fates[identity.message_id] == skipped:
            return
        if node == "c":
            kafka.sent(message)
        else:
            producer.produce(f"{self.pipeline}-c", message.value(), message.key())
            producer.poll(0)

    # -- what lagloss says --------------------------------------------------------------------------------------------

    def wait_for_losses(self, store: Store, windows: int, timeout_s: float = 90) -> None:
        """Wait until every window is closed and every loss is certain."""
        lost = {name for name, fate in self.fates.items() if fate}
        row = tables.MissingMessageRow

        def are_certain() -> bool:
            listed = store.windows(self.pipeline, self.start_s, self.start_s + 60 * windows)
            counted = sum(window.lost.min for window in listed if window.lost is not None)
            if counted != len(lost) or sum(window.messages for window in listed) != len(self.fates):
                return False
            with store.engine.connect() as connection:
                kinds = connection.execute(select(row.kind).where(row.pipeline == self.pipeline)).scalars()
                return set(kinds) <= {"lost"}

        try:
            wait_until(are_certain, timeout_s, f"for the losses of {self.pipeline}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {store.windows(self.pipeline, self.start_s, self.start_s + 60)}") from None

    def command(self, place: str, windows: int, *words: str) -> list[str]:
        """The words of the command that repairs a place."""
        kind, name = place.split(" ")
        span = ["--window", rfc3339(self.start_s), "--to", rfc3339(self.start_s + 60 * windows)]
        return ["repair", self.pipeline, *span, "--at", f"{kind}:{name}", *self.topic_words(place), *words]

    def topic_words(self, place: str) -> list[str]:
        """The words that name the topic before a place, which a definition without taps does not."""
        return ["--from-topic", self.input_of(place)]


@dataclass
class TappedChain(Chain):
    """The same of services without the SDK, seen by taps: a message that b has committed and not passed on is lost at
    its node. They hand the header of a replay on."""

    @property
    def definition(self) -> str:
        return f"""
            apiVersion: lagloss/v1
            kind: Pipeline
            metadata: {{name: {self.pipeline}}}
            spec:
              grace: 1s
              lookback: 30m
              nodes:
                - {{name: a, to: [b], taps: {{out: {{topic: {self.topic}, id: $.id, eventTime: $.at}}}}}}
                - name: b
                  to: [c]
                  idempotent: true
                  taps: {{in: {{group: {self.pipeline}-b}}, out: {{topic: {self.pipeline}-c}}}}
                - {{name: c, idempotent: true, taps: {{in: {{group: {self.pipeline}-c}}}}}}
        """

    def topic_words(self, place: str) -> list[str]:
        """None: the definition names it."""
        return []

    def _open(self) -> None:
        self._producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0, **PRODUCER})

    def _send_one(self, name: str, event_ms: int, random: Random) -> None:
        value = json.dumps({"id": name, "at": event_ms, "more": "x" * random.randint(0, 300)}).encode()
        self._producer.produce(self.topic, value, random.choice((None, name.encode())), headers=[("kind", None)])

    def _follow(self, node: str, topic: str) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "log_level": 0, **PRODUCER})
        group = {"group.id": f"{self.pipeline}-{node}", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "isolation.level": "read_committed", "log_level": 0, **group}
        )
        consumer.subscribe([topic])
        while not self._over.is_set():
            messages = [message for message in consumer.consume(500, 0.2) if message.error() is None]
            for message in messages:
                content = json.loads(message.value() or b"{}")
                name = content["id"]
                replay = dict(headers_of(message) or ()).get(REPLAY)
                self.received[node, name, replay and replay.decode()] += 1
                is_lost = replay is None and self.fates.get(name) == f"node {node}"
                if node == "b" and name in self.fates and not is_lost:
                    headers = [] if replay is None else [(REPLAY, replay)]
                    producer.produce(f"{self.pipeline}-c", message.value(), message.key(), headers=headers)
                if node == "c" and not is_lost:
                    self._write(name, content["at"])
            if messages:
                assert producer.flush(30) == 0
                consumer.commit(asynchronous=False)
        consumer.close()

    def _write(self, name: str, event_ms: int) -> None:
        """Deliver a message at the last node."""


@dataclass
class TabledChain(TappedChain):
    """The same, whose last node writes rows into a table: a message that it has committed and not written is lost.
    `url`: of the database."""

    url: str = ""

    @property
    def definition(self) -> str:
        table = f"database: {SINK}, table: public.{self.table}, id: id, eventTime: at, cursor: n"
        group = f"in: {{group: {self.pipeline}-c}}"
        return super().definition.replace(f"{{{group}}}", f"{{{group}, out: {{{table}}}}}")

    @property
    def table(self) -> str:
        return self.pipeline.replace("-", "_")

    def _open(self) -> None:
        super()._open()
        self._rows = self._stack.enter_context(closing(psycopg.connect(self.url, autocommit=True)))
        self._rows.execute(f"CREATE TABLE {self.table} (id text, at bigint, {CURSORS['xid8']})".encode())

    def _write(self, name: str, event_ms: int) -> None:
        self._rows.execute(f"INSERT INTO {self.table} VALUES (%s, %s)".encode(), (name, event_ms))


@dataclass(frozen=True)
class Copy:
    """A record as the ledger has it."""

    message_id: str
    replay: str | None
    partition: int
    timestamp_ms: int
    key: Any
    value: Any
    headers: tuple[tuple[str, Any], ...]

    @property
    def content(self) -> tuple[Any, ...]:
        """All of it but the header of a replay."""
        headers = tuple(header for header in self.headers if header[0] != REPLAY)
        return self.message_id, self.partition, self.timestamp_ms, self.key, self.value, headers


def committed(bootstrap: str, topic: str) -> list[Copy]:
    """Every record that a committed reader finds in a topic now."""
    copies: list[Copy] = []
    with consumer_of(bootstrap, **{"isolation.level": "read_committed", "enable.partition.eof": True}) as consumer:
        left = set(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in left])
        deadline = time.monotonic() + 60
        while left:
            assert time.monotonic() < deadline, f"{topic} could not be read to its end"
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error():
                left.discard(message.partition())
                continue
            headers = tuple(headers_of(message) or ())
            named = dict(headers)
            replay = named[REPLAY].decode() if REPLAY in named else None
            name = named["lagloss-id"].decode() if "lagloss-id" in named else json.loads(message.value() or b"")["id"]
            copies.append(
                Copy(
                    name,
                    replay,
                    message.partition() or 0,
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                    headers,
                )
            )
    return copies


def make_topic(bootstrap: str, topic: str, **config: str) -> None:
    """Create a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=config)])[topic].result(30)


def copy_topic(bootstrap: str, topic: str, into: str) -> None:
    """Copy all records of a topic, as a backup does."""
    make_topic(bootstrap, into)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, **PRODUCER})
    for copy in committed(bootstrap, topic):
        producer.produce(into, copy.value, copy.key, timestamp=copy.timestamp_ms, headers=list(copy.headers))
    assert producer.flush(30) == 0


def delete_records(bootstrap: str, topic: str) -> None:
    """Delete all records of a topic, as retention does."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    ends = [TopicPartition(topic, number, -1) for number in range(PARTITIONS)]
    for deleted in admin.delete_records(ends).values():
        deleted.result(30)


@dataclass(frozen=True)
class Ended:
    """How a repairer ended: its exit code, negative if it was killed, and what it printed."""

    code: int
    document: dict[str, Any] | None


@dataclass(frozen=True)
class Repairer:
    """Runs the command `lagloss` in processes of its own."""

    bootstrap: str
    database_url: str
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    """More of its environment."""

    def run(self, words: Sequence[str], fault: str | None = None, nth: int = 1) -> Ended:
        """Run a command to its end, or until it is killed at the nth time that it comes to a point."""
        return self.start(words, fault, nth)()

    def start(self, words: Sequence[str], fault: str | None = None, nth: int = 1) -> Callable[[], Ended]:
        """Begin a command; what is returned waits for its end."""
        out = self.folder / f"repairer-{time.monotonic_ns()}"
        environment = {
            "LAGLOSS_KAFKA_BOOTSTRAP": self.bootstrap,
            "LAGLOSS_DATABASE_URL": self.database_url,
            "LAGLOSS_DATA_DIR": str(self.folder),
            **self.variables,
        }
        process = _FORKS.Process(target=_repair, args=([*words, "--json"], environment, str(out), fault, nth))
        process.start()

        def end() -> Ended:
            process.join(100)
            if process.exitcode is None:
                process.kill()
                process.join()
                raise AssertionError(f"{words} did not end")
            text = out.read_text() if out.exists() else ""
            return Ended(process.exitcode, json.loads(text) if text.strip() else None)

        return end


def _repair(words: list[str], environment: Mapping[str, str], out: str, fault: str | None, nth: int) -> None:
    """Be the command `lagloss` with these words, with its output in a file."""
    os.environ.update(environment)
    sys.argv = ["lagloss", *words]
    sys.stdout = Path(out).open("w", encoding="utf-8")  # noqa: SIM115  # until the process ends
    if fault is not None:
        _die_at(fault, nth)
    from lagloss_server.cli.main import main

    main()


def _die_at(point: str, nth: int) -> None:
    from lagloss_server.repair.arrivals import Arrivals
    from lagloss_server.repair.ledger import RepairLedger
    from lagloss_server.repair.queue import QueueTransport
    from lagloss_server.repair.sender import RepairSender

    name, when = point.split(" ")
    owner, method = name.split(".")
    owners: tuple[Any, ...] = (Arrivals, QueueTransport, RepairLedger, RepairSender)
    of: Any = next(kind for kind in owners if kind.__name__ == owner)
    left = nth

    def come(then: str) -> None:
        nonlocal left
        if then == when:
            left -= 1
            if left == 0:
                sys.stdout.close()
                os.kill(os.getpid(), signal.SIGKILL)

    is_of_client = not hasattr(of, method)
    original = of._call if is_of_client else getattr(of, method)

    def dying(self: Any, *words: Any, **more: Any) -> Any:
        is_it = not is_of_client or words[0].__name__ == method
        if is_it:
            come("before")
        answer = original(self, *words, **more)
        if is_it:
            come("after")
        return answer

    setattr(of, "_call" if is_of_client else method, dying)


@contextmanager
def closing_all(parts: Driven) -> Iterator[None]:
    """Follow reports and close windows as an aggregator does, until the block ends."""
    over, catchup, failures = threading.Event(), Catchup(), list[BaseException]()

    def close_due() -> None:
        try:
            while not over.wait(0.5):
                now_ms = time.time_ns() // 1_000_000
                caught_up_ms = catchup.update(now_ms, parts.follower.positions(), parts.reports.ends)
                if caught_up_ms:
                    parts.closer.tick(caught_up_ms, now_ms)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=close_due)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)
    assert not failures, failures
