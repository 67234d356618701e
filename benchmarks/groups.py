"""The watch of all consumer groups: rounds over 2,000 groups of 10,000 partitions, beside the bare requests that they
are made of, in turns."""

from __future__ import annotations

import resource
import time
from collections.abc import Collection
from typing import Final

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from aggregator.consumer_lag.event_times import RecordPlace
from aggregator.consumer_lag.lag import ConsumerLags
from aggregator.consumer_lag.watch import EVERY_S, ConsumerLagWatch, WatchedGroups
from aggregator.metrics import AggregatorMetrics
from aggregator.set_aside import SetAside
from benchmarks.database import PATIENT, Servers, fresh_servers, make_topics, prepare_groups
from benchmarks.figures import Figure
from benchmarks.timing import Stopwatch
from lagloss_server.groups.cluster_groups import read_cluster_groups
from lagloss_server.store.partitions import make_days_ahead

GROUPS: Final = 2_000
"""Each reads one topic, two read the same."""
TOPICS: Final = 1_000
PARTITIONS: Final = 10
"""Of a topic."""
ROUNDS: Final = 5
AT_ONCE: Final = 200
MAX_CORES: Final = 0.5


def run() -> list[Figure]:
    """Print and return the CPU time of a round beside that of its requests."""
    with fresh_servers() as servers:
        traffic = Traffic(servers)
        lags = ConsumerLags(servers.kafka.bootstrap)
        make_days_ahead(servers.store.engine, time.time())
        watch = ConsumerLagWatch(
            servers.kafka.bootstrap,
            servers.store.engine,
            lambda: WatchedGroups([]),
            AggregatorMetrics(),
            SetAside(servers.store.engine),
        )
        pid = servers.postgres.processes[0].pid
        rounds, bare = Stopwatch(pid), Stopwatch()
        requests = BareRequests(servers.kafka.bootstrap)
        for number in range(ROUNDS):
            traffic.move()
            with bare:
                requests.send()
            traffic.move()
            with rounds:
                watch.round(lambda _cluster: lags)
            done = number + 1
            print(f"round {done}: {rounds.own_s / done:.2f} s of CPU a round, bare {bare.own_s / done:.2f} s")
        with servers.store.engine.connect() as connection:
            readings = read_cluster_groups(connection)
        dated = sum(reading.group.behind_s is not None for reading in readings)
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024
        print(f"{len(readings):,} groups, {dated:,} with seconds behind; peak memory {peak_mb:.0f} MB")
        cores = rounds.own_s / ROUNDS / EVERY_S
        return [
            Figure(
                f"a round of {GROUPS:,} groups of {TOPICS * PARTITIONS:,} partitions, above its requests",
                cores - bare.own_s / ROUNDS / EVERY_S,
                "cores",
                MAX_CORES,
                bare.own_s / ROUNDS / EVERY_S,
                "the same requests",
            ),
            Figure("PostgreSQL meanwhile", rounds.servers_s / ROUNDS / EVERY_S, "cores"),
            Figure(
                "seconds of a round", rounds.wall_s / ROUNDS, "s", EVERY_S, bare.wall_s / ROUNDS, "the same requests"
            ),
        ]


class Traffic:
    """Topics, and groups that read them; each step appends a record to each partition and moves each group by one."""

    def __init__(self, servers: Servers) -> None:
        self._producer = Producer({"bootstrap.servers": servers.kafka.bootstrap, "linger.ms": 50, **PATIENT})
        self._admin = AdminClient({"bootstrap.servers": servers.kafka.bootstrap})
        make_topics(servers.kafka.bootstrap, [f"topic-{number}" for number in range(TOPICS)], PARTITIONS)
        self._keys = [(f"topic-{topic}", partition) for topic in range(TOPICS) for partition in range(PARTITIONS)]
        self._offset = 0
        for _ in range(2):
            self._append()
        prepare_groups(servers.kafka.bootstrap, "topic-0")
        self._commit(range(GROUPS))

    def move(self) -> None:
        """Append a record to each partition, and let each group take one in: one or two stay unread."""
        self._offset += 1
        self._append()
        self._commit(range(GROUPS))

    def _append(self) -> None:
        for topic, partition in self._keys:
            self._producer.produce(topic, b"x" * 100, partition=partition)
            self._producer.poll(0)
        self._producer.flush(60)

    def _commit(self, groups: Collection[int]) -> None:
        futures = []
        for number in groups:
            topic = f"topic-{number % TOPICS}"
            places = [TopicPartition(topic, partition, self._offset) for partition in range(PARTITIONS)]
            (future,) = self._admin.alter_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(f"group-{number:04}", places)]
            ).values()
            futures.append(future)
            if len(futures) == AT_ONCE:
                while futures:
                    futures.pop().result(60)
        for future in futures:
            future.result(60)


class BareRequests:
    """The requests of a round by the same clients, whose answers are left as they are."""

    def __init__(self, bootstrap: str) -> None:
        self._lags = ConsumerLags(bootstrap)

    def send(self) -> None:
        groups, bounds, records = self._lags._groups, self._lags._bounds, self._lags._records
        names = list(groups.listed())
        groups.described(names)
        committed = groups.committed(names)
        places = [RecordPlace(key, offset) for offsets in committed.values() for key, offset in offsets.items()]
        keys = [place.key for place in places]
        bounds.begins(keys)
        bounds.ends(keys)
        records._read({place.key: place for place in places}, time.monotonic() + EVERY_S)
