"""Faults: each is inflicted at a moment, and healed later. A seed draws its targets, so that it can be repeated.

A new one is a class with `name`, `inflict` and `heal`, in NEMESES.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from random import Random
from typing import ClassVar, Final

import psycopg
from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    OffsetSpec,
    PartitionMetadata,
    ResourceType,
)
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from lagloss.broker.topics import BEACONS, REPORTS
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.schema.taps import TapRow
from tests.histories.cluster import BROKERS, POSTGRES, SERVICES, Cluster, wait
from tests.histories.net import RECEIVER
from tests.histories.traffic import NODES, TAPPED, TOPICS

APPS: Final = tuple(role.host for role in NODES)
HOOK: Final = "hook"
"""The receiver of pages, which is on no host of its own."""
AGGREGATORS: Final = ("ag1", "ag2")
REPORTED_S: Final = 140.0
"""Emitters report every 10 s, and up to two minutes later windows may be of reports that are deleted."""
LONGEST_REBUILD_S: Final = 60.0


class Nemesis(ABC):
    """A fault. `targets`: the hosts that it disturbs; all of it is drawn when it is made. `forgotten`: when the
    database lost its last commits (epoch s); `away`: of which time evidence was."""

    name: ClassVar[str]
    may_end: ClassVar[bool] = False
    """Whether programs on its targets may end by themselves."""
    lasts_s: ClassVar[tuple[float, float]] = (10.0, 45.0)
    """At least and at most, before it is healed."""
    seals: ClassVar[bool] = False
    """Whether it deletes beacons of any time before it."""
    heals_last: ClassVar[bool] = False
    """Whether its healing waits for what another fault may hold up: it comes last then, whatever the plan says."""
    patience_s = 0.0
    """Time after its healing for which it may still hold back what it has nothing to do with any more."""

    def __init__(self, cluster: Cluster, random: Random) -> None:
        self.cluster = cluster
        self.targets: tuple[str, ...] = ()
        self.forgotten: list[tuple[float, float]] = []
        self.away: list[tuple[float, float]] = []
        self.draw(random)

    @abstractmethod
    def draw(self, random: Random) -> None:
        """Choose the targets, and nothing else."""

    @abstractmethod
    def inflict(self) -> None:
        """Begin. Raises nothing for a target that is down already."""

    @abstractmethod
    def heal(self) -> None:
        """End it, and return once nothing is broken by it any more."""

    def __str__(self) -> str:
        return f"{self.name}({' '.join(self.targets)})"


class Kill(Nemesis):
    """kill -9 of whatever runs on a host, which is started again."""

    name = "kill"

    def draw(self, random: Random) -> None:
        self.targets = (random.choice([*BROKERS, POSTGRES[0], *SERVICES, *APPS]),)

    def inflict(self) -> None:
        self.cluster.programs[self.targets[0]].kill()

    def heal(self) -> None:
        (target,) = self.targets
        if target not in POSTGRES or target == self.cluster.postgres.primary.name:
            self.cluster.programs[target].start()  # a primary that is none any more comes back as the stand-by


class Pause(Nemesis):
    """SIGSTOP of whatever runs on a host."""

    name = "pause"
    lasts_s = (30.0, 120.0)

    def draw(self, random: Random) -> None:
        self.targets = (random.choice([*BROKERS, POSTGRES[0], *SERVICES, *APPS]),)

    def inflict(self) -> None:
        self.cluster.programs[self.targets[0]].pause()

    def heal(self) -> None:
        self.cluster.programs[self.targets[0]].resume()


class Partition(Nemesis):
    """Two hosts do not reach each other: one of them, and a server that it uses."""

    name = "partition"

    def draw(self, random: Random) -> None:
        user = random.choice([*BROKERS, *SERVICES, *APPS])
        servers = {"al1": (*POSTGRES, HOOK), "al2": (*POSTGRES, HOOK), "dash": POSTGRES, "app7": ("col",)}
        servers |= {"app8": ("col",), **dict.fromkeys(BROKERS, ("ctl", *BROKERS))}
        servers |= dict.fromkeys((*AGGREGATORS, "tap", "col"), (*BROKERS, *POSTGRES))
        server = random.choice([name for name in servers.get(user, BROKERS) if name != user])
        self.targets = (user, server)

    def inflict(self) -> None:
        self._set(self.targets, blocked=True)
        self._set(self.targets[::-1], blocked=True)

    def heal(self) -> None:
        self._set(self.targets, blocked=False)
        self._set(self.targets[::-1], blocked=False)

    def _set(self, pair: tuple[str, ...], *, blocked: bool) -> None:
        """Let, or do not let, packets of the second reach the first."""
        receiver, sender = pair
        if receiver == HOOK:
            return
        hosts = self.cluster.hosts
        address = RECEIVER if sender == HOOK else hosts[sender].address
        (hosts[receiver].block if blocked else hosts[receiver].unblock)(address)


class OneWay(Partition):
    """Packets of one host do not reach another, while those of the other do."""

    name = "one-way"

    def draw(self, random: Random) -> None:
        super().draw(random)
        if HOOK not in self.targets and random.random() < 0.5:
            self.targets = self.targets[::-1]

    def inflict(self) -> None:
        self._set(self.targets, blocked=True)

    def heal(self) -> None:
        self._set(self.targets, blocked=False)


class _Background(Nemesis):
    """A fault that goes on by itself between `inflict` and `heal`."""

    def inflict(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def heal(self) -> None:
        self._over.set()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None: ...


class Flap(_Background):
    """A host's cable is loose."""

    name = "flapping link"

    def draw(self, random: Random) -> None:
        self.targets = (random.choice([*BROKERS, *POSTGRES, *SERVICES, *APPS]),)
        self._times = [random.uniform(0.3, 6) for _ in range(200)]

    def _run(self) -> None:
        host, up = self.cluster.hosts[self.targets[0]], True
        for pause_s in self._times:
            up = not up
            host.set_link(up=up)
            if self._over.wait(pause_s):
                break
        host.set_link(up=True)


class LossyLink(Nemesis):
    """A host gets only four of five packets."""

    name = "lossy link"

    def draw(self, random: Random) -> None:
        self.targets = (random.choice([*BROKERS, *POSTGRES, *SERVICES, *APPS]),)

    def inflict(self) -> None:
        self.cluster.hosts[self.targets[0]].lose(20)

    def heal(self) -> None:
        self.cluster.hosts[self.targets[0]].lose(0)


class SlowLink(LossyLink):
    """A host's cable lets 128 kbit/s through."""

    name = "slow link"

    def inflict(self) -> None:
        self.cluster.hosts[self.targets[0]].slow_down(128)

    def heal(self) -> None:
        self.cluster.hosts[self.targets[0]].slow_down(0)


class FullDisk(Nemesis):
    """No byte is left on a host's disk: of a broker, of PostgreSQL, of a data folder, or of a spool. The host of a
    spool does not reach where it sends to: it needs the spool only then."""

    name = "full disk"
    may_end = True

    def draw(self, random: Random) -> None:
        self.targets = (random.choice([*BROKERS, POSTGRES[0], *AGGREGATORS, "col", "tap", "app1", "app2", "app7"]),)
        receivers = {"app7": ("col",), **dict.fromkeys(("col", "tap", "app1", "app2"), BROKERS)}
        self._receivers = receivers.get(self.targets[0], ())

    def inflict(self) -> None:
        host = self.cluster.hosts[self.targets[0]]
        host.fill_disk()
        for receiver in self._receivers:
            host.block(self.cluster.hosts[receiver].address)

    def heal(self) -> None:
        host = self.cluster.hosts[self.targets[0]]
        host.free_disk()
        for receiver in self._receivers:
            host.unblock(self.cluster.hosts[receiver].address)


class WrongClock(_Background):
    """A host's wall clock is up to ten minutes wrong; half of the time it jumps.

    Not ahead at a source, and not behind where messages are received: there beacons would be of windows that are still
    to come, and be refused. Losses are certain later by as much as clocks were apart."""

    name = "wrong clock"

    def draw(self, random: Random) -> None:
        hosts = [*BROKERS, *POSTGRES, *SERVICES, *(host for host in APPS if host != "app4")]  # a source that is tapped
        self.targets = (random.choice(hosts),)
        least_s = 0 if self.targets[0] in (*BROKERS, "col", "tap") else -600
        most_s = 0 if self.targets[0] in ("app1", "app7", "app8") else 600
        jumps = random.random() < 0.5
        self._steps = [
            (random.randrange(least_s, most_s + 1), random.uniform(2, 15)) for _ in range(60 if jumps else 1)
        ]

    def _run(self) -> None:
        host, seen = self.cluster.hosts[self.targets[0]], [0]
        for wrong_by_s, pause_s in self._steps:
            host.set_clock(1000 * wrong_by_s)
            seen.append(wrong_by_s)
            if self._over.wait(pause_s):
                break
        self._over.wait()
        host.set_clock(0)
        self.patience_s = 1.2 * (max(seen) - min(seen)) + 60


class NoNames(Nemesis):
    """DNS is gone for some hosts."""

    name = "no names"

    def draw(self, random: Random) -> None:
        self.targets = tuple(random.sample([*SERVICES, *APPS], 5))

    def inflict(self) -> None:
        for target in self.targets:
            self.cluster.hosts[target].forget_names()

    def heal(self) -> None:
        for target in self.targets:
            self.cluster.hosts[target].know_names(self.cluster.hosts.values())


class HangingReceiver(Nemesis):
    """The receiver takes requests, and does not answer; long enough for a minute with losses to be paged."""

    name = "hanging receiver"
    lasts_s = (90.0, 150.0)

    def draw(self, random: Random) -> None:
        self.targets = (HOOK,)

    def inflict(self) -> None:
        self.cluster.receiver.answering.clear()

    def heal(self) -> None:
        self.cluster.receiver.answering.set()


class RollingRestart(_Background):
    """Every process of a service, or of the brokers, is ended in an orderly way and started, one after the other."""

    name = "rolling restart"

    def draw(self, random: Random) -> None:
        services = [tuple(name for name, its in SERVICES.items() if its == service) for service in SERVICES.values()]
        self.targets = random.choice([BROKERS, *dict.fromkeys(services), ("app1", "app2", "app3"), ("app5", "app6")])

    def _run(self) -> None:
        pass

    def inflict(self) -> None:
        """Do not leave the main thread: what is started by another one ends with it."""
        self._left = list(self.targets)
        self._next()

    def heal(self) -> None:
        while self._left:
            self._next()

    def _next(self) -> None:
        target = self._left.pop(0)
        program = self.cluster.programs[target]
        program.stop(signal.SIGTERM)
        program.start()
        with suppress(TimeoutError):  # beside another fault it may not become ready
            if target in BROKERS:
                wait(self.cluster.in_sync, 60, target)
            elif target in SERVICES:
                wait(lambda: self.cluster.health(target) in (200, 503), 120, target)


class OtherVersion(RollingRestart):
    """One process of a service is of the oldest version that can run beside this one; then, one after the other, all
    are, and all are upgraded again."""

    name = "other version"
    lasts_s = (20.0, 45.0)

    def draw(self, random: Random) -> None:
        services = [tuple(name for name, its in SERVICES.items() if its == service) for service in SERVICES.values()]
        self.targets = random.choice([*dict.fromkeys(services), ("app1", "app2", "app3"), ("app5", "app6")])

    def inflict(self) -> None:
        self._downgraded = {"PYTHONPATH": str(self.cluster.oldest_version)}
        super().inflict()

    def heal(self) -> None:
        super().heal()
        self._downgraded, self._left = {}, list(self.targets)
        super().heal()

    def _next(self) -> None:
        program = self.cluster.programs[self._left[0]]
        others = {name: value for name, value in program.env.items() if name != "PYTHONPATH"}
        program.env = {**others, **self._downgraded}
        super()._next()


class MovedLeaders(RollingRestart):
    """Partitions of a broker are led by others, and by it again."""

    name = "leader moves"
    heals_last = True

    def draw(self, random: Random) -> None:
        self.targets = (random.choice(BROKERS),)

    def heal(self) -> None:
        wait(self.cluster.in_sync, 120, "all in sync", self.cluster)
        self.cluster.admin.elect_leaders(ElectionType.PREFERRED, None).result(20)


class Widened(Nemesis):
    """A topic gets another partition: of the pipelines, or of beacons."""

    name = "widened topic"
    lasts_s = (40.0, 60.0)
    heals_last = True

    def draw(self, random: Random) -> None:
        self.targets = (random.choice(["sdk-mid", "sdk-snk", "tapped-in", "tapped-out", BEACONS]),)

    def inflict(self) -> None:
        self._is_wider = False
        with suppress(KafkaException):  # while a broker is away there can be no partition with all replicas
            self._widen()

    def heal(self) -> None:
        if not self._is_wider:
            self._widen()

    def _widen(self) -> None:
        topic = self.targets[0]
        count = len(self.cluster.admin.list_topics(topic, timeout=10).topics[topic].partitions)
        self.cluster.admin.create_partitions([NewPartitions(topic, count + 1)])[topic].result(20)
        self._is_wider = True


class FailOver(Nemesis):
    """The primary is lost, and the stand-by promoted; the lost one comes back as the stand-by."""

    name = "failover"
    heals_last = True
    holds_back = False

    def draw(self, random: Random) -> None:
        self.targets = POSTGRES

    def inflict(self) -> None:
        postgres = self.cluster.postgres
        began = time.time()
        if _lag(self.cluster) < 0:
            return  # there is no stand-by, since another one was promoted
        if self.holds_back:
            self._hold_back()
        with suppress(TimeoutError):
            # beside another fault the stand-by may be behind for another reason; then commits are lost here, too
            wait(lambda: self.holds_back or _lag(self.cluster) == 0, 10, "the stand-by")
        self.cluster.programs[postgres.primary.name].kill()
        for _ in range(100):
            try:
                postgres.promote()
                break
            except psycopg.Error:
                time.sleep(0.3)
        self.forgotten.append((began - 2, time.time()))

    def heal(self) -> None:
        make_stand_by(self.cluster)

    def _hold_back(self) -> None:
        """Cut the stand-by off for some seconds: what is committed meanwhile dies with the primary."""
        primary, standby = self.cluster.postgres.primary, self.cluster.postgres.standby
        standby.block(primary.address)
        time.sleep(5)
        self.cluster.programs[primary.name].kill()
        standby.unblock(primary.address)


class LostCommits(FailOver):
    """The same, without the last commits of the primary."""

    name = "failover, commits lost"
    holds_back = True


class RestoredBackup(Nemesis):
    """The database goes on from a backup that was made when the fault began."""

    name = "restored backup"
    heals_last = True

    def draw(self, random: Random) -> None:
        self.targets = POSTGRES

    def inflict(self) -> None:
        self._since, self._of = time.time(), self.cluster.postgres.primary
        self._is_made = False
        with suppress(subprocess.SubprocessError):  # beside another fault there may be none to copy
            self.cluster.postgres.back_up()
            self._is_made = True

    def heal(self) -> None:
        try:
            if self._is_made and self.cluster.postgres.primary is self._of:
                self.cluster.postgres.restore()
        finally:
            self.forgotten.append((self._since - 2, time.time()))
        make_stand_by(self.cluster)


class Retention(Nemesis):
    """No aggregator runs, and the broker deletes beacons, reports, or both, that none has read."""

    name = "retention"
    seals = True
    heals_last = True

    def draw(self, random: Random) -> None:
        self.targets = random.choice(((BEACONS,), (REPORTS,), (BEACONS, REPORTS)))

    def inflict(self) -> None:
        self._since = time.time()
        for name in AGGREGATORS:
            self.cluster.programs[name].stop()

    def heal(self) -> None:
        wait(self.cluster.in_sync, 120, "all in sync", self.cluster)
        wait(self._delete, 60, "the deletion", self.cluster)  # a leader may be so new that a broker does not know it
        self.away.append((self._since, time.time() + REPORTED_S))
        for name in AGGREGATORS:
            self.cluster.programs[name].start()

    def _delete(self) -> bool:
        admin = self.cluster.admin
        topics = admin.list_topics(timeout=10).topics
        places = [TopicPartition(topic, partition) for topic in self.targets for partition in topics[topic].partitions]
        ends = admin.list_offsets({place: OffsetSpec.latest() for place in places})
        until = [TopicPartition(place.topic, place.partition, end.result(20).offset) for place, end in ends.items()]
        for deleted in admin.delete_records(until).values():
            deleted.result(20)
        return True


class UncleanElection(Nemesis):
    """A broker that was away is the only one that comes back, and leads: what the others had acknowledged meanwhile is
    deleted when they follow it."""

    name = "unclean election"
    heals_last = True

    def draw(self, random: Random) -> None:
        self.targets = (random.choice(BROKERS),)

    def inflict(self) -> None:
        programs, (stale,) = self.cluster.programs, self.targets
        self._others = [name for name in BROKERS if name != stale]
        self._since = time.time()
        self._allow("true")
        programs[stale].kill()
        wait(lambda: len(self.cluster.admin.list_topics(timeout=3).brokers) <= len(self._others), 60, "its absence")
        time.sleep(5)
        for name in self._others:
            programs[name].kill()
        programs[stale].start()
        number = BROKERS.index(stale) + 1
        wait(lambda: {its.leader for its in self._partitions()} == {number}, 90, "its lead")

    def heal(self) -> None:
        for name in self._others:
            self.cluster.programs[name].start()
        try:
            wait(self.cluster.in_sync, 120, "all in sync", self.cluster)
            with suppress(TimeoutError):  # of taps that cannot look, for another fault, the next look is too late
                wait(partial(self._taps_have_looked, time.time()), 60, "looks of taps", self.cluster)
        finally:
            self.away.append((self._since, time.time()))
            self._allow("false")

    def _taps_have_looked(self, since_s: float) -> bool:
        """Return whether taps have asked what is allowed; what is allowed for a moment only, no tap can know of."""
        tap = table_of(TapRow)
        try:
            with self.cluster.store.engine.connect() as connection:
                plans = connection.execute(select(tap.c.plan).where(tap.c.pipeline == TAPPED)).scalars().all()
        except SQLAlchemyError:
            return False
        return all(plan["planned_at_ms"] > since_s * 1000 for plan in plans)

    def _partitions(self) -> Iterable[PartitionMetadata]:
        return self.cluster.admin.list_topics(BEACONS, timeout=3).topics[BEACONS].partitions.values()

    def _allow(self, value: str) -> None:
        """Allow, or do not allow, that a replica leads which is behind; never of the reports, as lagloss sets it."""
        entry = ConfigEntry("unclean.leader.election.enable", value, incremental_operation=AlterConfigOpType.SET)
        resources = [
            ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry]) for topic in (*TOPICS, BEACONS)
        ]
        for altered in self.cluster.admin.incremental_alter_configs(resources).values():
            altered.result(20)


def make_stand_by(cluster: Cluster) -> None:
    """Make the stand-by anew, from a primary that may be on its way up."""
    for _ in range(5):
        with suppress(Exception):
            wait(lambda: cluster.postgres.is_primary(cluster.postgres.primary), LONGEST_REBUILD_S, "it")
            cluster.postgres.follow()
            wait(lambda: _lag(cluster) >= 0, LONGEST_REBUILD_S, "the stand-by")
            return
    raise TimeoutError("the stand-by could not be made anew")


def _lag(cluster: Cluster) -> int:
    try:
        return cluster.postgres.lag_bytes()
    except psycopg.Error:
        return -1


NEMESES: Final[dict[str, type[Nemesis]]] = {
    kind.name: kind
    for kind in (
        Kill,
        Pause,
        Partition,
        OneWay,
        Flap,
        FullDisk,
        WrongClock,
        NoNames,
        HangingReceiver,
        RollingRestart,
        OtherVersion,
        MovedLeaders,
        Widened,
        FailOver,
        LostCommits,
        LossyLink,
        SlowLink,
        RestoredBackup,
        Retention,
        UncleanElection,
    )
}
