"""One history: faults drawn from a seed, inflicted at random moments and healed, and what the cluster made of it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from lagloss.errors import LaglossError
from lagloss_server.store.schema.alerting import IncidentRow
from lagloss_server.store.schema.core import MissingMessageRow, WindowRow, table_of
from tests.histories.checker import (
    Excuses,
    IncidentSeen,
    Seen,
    WindowSeen,
    false_losses,
    forgotten_actions,
    nodes_of,
    wrong_pages,
    wrong_windows,
)
from tests.histories.cluster import POSTGRES, SERVICES, Cluster
from tests.histories.ledger import Books, path_of
from tests.histories.nemeses import HOOK, NEMESES, Nemesis
from tests.histories.traffic import GRACE_S, NODES, PIPELINES, WINDOW_S
from tests.histories.users import Users, stored_actions
from tests.support.kafka_log import PATIENCE

CALM_S: Final = 5.0
"""Before the first fault."""
EARLIEST_S, LATEST_S = 0.0, 15.0
LOOK_EVERY_S: Final = 2.0
RECOVERY_S: Final = 120.0 * PATIENCE
"""After all is healed, everything is right within this time."""
DEAD_S: Final = 60.0
"""More, where a process was killed: it counts as dead only then."""
BEFORE_S: Final = 720
"""What a look covers before a history: windows of a source whose clock is behind."""
OF_NOW: Final = ("is not well", "does not answer", "ended by itself")
"""How problems end that are of the moment, and are new where they come up again."""
RESULTS: Final = Path(__file__).with_name("results.jsonl")


@dataclass(frozen=True)
class Step:
    """`at_s` after the history's begin."""

    at_s: float
    nemesis: int
    verb: str


@dataclass(frozen=True)
class Plan:
    """What a seed stands for: names of faults and when each begins and ends."""

    seed: int
    names: tuple[str, ...]
    steps: tuple[Step, ...]

    @staticmethod
    def draw(seed: int, names: Sequence[str] = (), share_of_pairs: float = 0.5) -> Plan:
        """Return the plan of a seed; with `names`, of these faults."""
        random = Random(seed)
        count = 2 if random.random() < share_of_pairs else 1
        sampled = tuple(random.sample(list(NEMESES), count))  # also where it is not used: the same times follow
        drawn = tuple(names) or sampled
        steps = []
        for index in range(len(drawn)):
            begin = random.uniform(EARLIEST_S, LATEST_S)
            lasts_s = random.uniform(*NEMESES[drawn[index]].lasts_s)
            steps += [Step(begin, index, "inflict"), Step(begin + lasts_s, index, "heal")]
        return Plan(seed, drawn, tuple(sorted(steps, key=lambda step: step.at_s)))


@dataclass
class Outcome:
    """What came of a history. `timeline`: lines with the seconds since its begin."""

    plan: Plan
    targets: list[str]
    problems: list[str]
    timeline: list[str]
    seconds: float
    recovery_s: float

    def document(self) -> dict[str, object]:
        return {
            "seed": self.plan.seed,
            "nemeses": list(self.plan.names),
            "targets": self.targets,
            "problems": self.problems,
            "seconds": round(self.seconds),
            "recovery_s": round(self.recovery_s),
            "patience": PATIENCE,
        }

    def text(self) -> str:
        """Return seed, problems and timeline, for whoever has to repeat it."""
        again = " ".join(f"--nemesis '{name}'" for name in self.plan.names)
        head = [f"seed {self.plan.seed}: python -m tests.histories --seed {self.plan.seed} {again}"]
        return "\n".join([*head, *(f"  {problem}" for problem in self.problems), *self.timeline])


@dataclass
class Observer:
    """Looks at the store of one cluster, and compares it with the ledgers."""

    cluster: Cluster
    seen: dict[str, Seen] = field(default_factory=lambda: {name: Seen() for name in PIPELINES})
    reported: set[str] = field(default_factory=set)
    """Problems that an earlier history of this cluster has reported."""
    forgotten: list[tuple[float, float]] = field(default_factory=list)
    away: list[tuple[float, float]] = field(default_factory=list)
    """What faults of earlier histories have left, see `Excuses`."""
    repeated: set[str] = field(default_factory=set)
    """Ids of pages that came again while that was allowed."""
    patient_until_s: float = 0.0
    """Until when a clock that was wrong may still hold something back (epoch s)."""

    def __post_init__(self) -> None:
        hosts = {name: tuple(role.host for role in NODES if role.pipeline == name) for name in PIPELINES}
        self.books = {
            name: Books(tuple(path_of(self.cluster.ledgers, host) for host in its)) for name, its in hosts.items()
        }

    def look(self, from_s: int) -> bool:
        """Look at the windows from there on, and at all missing messages; return whether the store answered."""
        for books in self.books.values():
            books.look()
        window, missing = table_of(WindowRow), table_of(MissingMessageRow)
        try:
            with self.cluster.store.engine.connect() as connection:
                rows = connection.execute(
                    select(missing.c.pipeline, missing.c.message_id, missing.c.id_hash, missing.c.kind).where(
                        missing.c.window_start >= from_s
                    )
                ).all()
                starts = connection.execute(
                    select(window.c.pipeline, window.c.window_start).where(window.c.window_start >= from_s)
                ).all()
            documents = {
                name: self.cluster.store.closed_windows(name, [start for its, start in starts if its == name])
                for name in PIPELINES
            }
        except (SQLAlchemyError, LaglossError):
            return False
        now_s = time.time()
        for name, seen in self.seen.items():
            ledger = self.books[name].ledger
            seen.missing = {
                message or ledger.name_of(id_hash): kind for its, message, id_hash, kind in rows if its == name
            }
            for message, kind in seen.missing.items():
                if kind == "lost":
                    seen.said_lost.setdefault(message, now_s)
            seen.windows = {
                int(datetime.fromisoformat(listed.window_start).timestamp()): WindowSeen(
                    listed.verdict,
                    listed.messages,
                    listed.lost.min,
                    listed.lost.max,
                    listed.pending,
                    tuple(listed.reasons),
                )
                for listed in documents[name]
            }
        return True

    def false_losses(self) -> Iterator[str]:
        for name, seen in self.seen.items():
            yield from (f"{name}: {problem}" for problem in false_losses(self.books[name].ledger, seen))

    def incidents(self) -> dict[str, IncidentSeen]:
        row = table_of(IncidentRow)
        with self.cluster.store.engine.connect() as connection:
            rows = connection.execute(select(row.c.id, row.c.state, row.c.withheld_kind)).all()
        return {str(id_): IncidentSeen(state == "resolved", withheld is not None) for id_, state, withheld in rows}


def run(observer: Observer, plan: Plan) -> Outcome:
    """Run a history on a cluster that works, and leave it working, or with problems."""
    cluster = observer.cluster
    random = Random(plan.seed + 1)
    nemeses = [NEMESES[name](cluster, random) for name in plan.names]
    began = time.time()
    timeline: list[str] = []
    died: list[str] = []
    told: list[str] = []

    def note(line: str) -> None:
        timeline.append(f"  {time.time() - began:6.1f} s  {line}")

    def turn(nemesis: Nemesis, verb: str) -> None:
        note(f"{verb} {nemesis}")
        try:
            nemesis.inflict() if verb == "inflict" else nemesis.heal()
        except Exception as error:  # whatever it is: the others are to be healed, and the cluster goes on
            died.append(f"{nemesis}: {verb} failed: {error!r}")
            note(died[-1])

    def tend() -> None:
        for name in cluster.tend():
            note(f"{name} ended by itself")
            if not any(nemesis.may_end and name in nemesis.targets for nemesis in nemeses):
                died.append(f"{name} ended by itself")

    # in a thread: a database that is stopped answers a look only once it goes on, and this has it go on
    with closing(Users(cluster, f"users-{plan.seed}-{int(began)}")) as users, ThreadPoolExecutor(1) as looking:
        look: Future[bool] | None = None
        for step in plan.steps:
            while time.time() < began + CALM_S + step.at_s:
                if look is None or look.done():
                    look = looking.submit(observer.look, int(began) - BEFORE_S)
                tend()
                time.sleep(LOOK_EVERY_S)
            if step.verb == "inflict" or not nemeses[step.nemesis].heals_last:
                turn(nemeses[step.nemesis], step.verb)
        order = list(NEMESES)
        # what waits for the rest of the cluster to work, the last of them first: brokers come before what needs them
        for nemesis in sorted(nemeses, key=lambda nemesis: order.index(nemesis.name), reverse=True):
            if nemesis.heals_last:
                turn(nemesis, "heal")
        note("all is healed")
        healed_s = time.time()
        observer.patient_until_s = max([observer.patient_until_s, *(healed_s + it.patience_s for it in nemeses)])
        if look is not None:
            look.result()
        last_s = int(healed_s) // WINDOW_S * WINDOW_S
        is_dead = any(died_s >= began for program in cluster.programs.values() for died_s in program.deaths)
        until_s = max(healed_s, last_s + WINDOW_S + GRACE_S) + RECOVERY_S + (DEAD_S if is_dead else 0)
        until_s = max(until_s, observer.patient_until_s)
        problems = ["never looked"]
        while problems and time.time() < until_s:
            tend()
            problems = [*_problems(observer, users, nemeses, (began, healed_s)), *died]
            for problem in [problem for problem in problems if problem not in told]:
                note(f"still: {problem}")
                told.append(problem)
            if all(problem in died or problem in observer.reported for problem in problems):
                break
            time.sleep(LOOK_EVERY_S)
        note("over")
    fresh = [problem for problem in problems if problem not in observer.reported]
    observer.reported |= {problem for problem in fresh if not problem.endswith(OF_NOW)}
    if _may_repeat(nemeses):
        ids = Counter(page.id for page in cluster.receiver.pages)
        observer.repeated |= {its for its, times in ids.items() if times > 1}
    for nemesis in nemeses:
        observer.forgotten += nemesis.forgotten
        # what is deleted seals earlier windows, too; those of clocks that are behind come back to them
        observer.away += [(0.0 if nemesis.seals else begin, end) for begin, end in nemesis.away]
    targets = [str(nemesis) for nemesis in nemeses]
    return Outcome(plan, targets, fresh, timeline, time.time() - began, time.time() - healed_s)


def _problems(observer: Observer, users: Users, nemeses: Sequence[Nemesis], during: tuple[float, float]) -> list[str]:
    """Return everything that is not as it should be now, of the windows of messages sent `during` (epoch s)."""
    cluster = observer.cluster
    if not observer.look(int(during[0]) - BEFORE_S):
        return ["the database does not answer"]
    excuses = _excuses(observer, nemeses)
    may_repeat, repeated = _may_repeat(nemeses), observer.repeated
    pages = list(cluster.receiver.pages)
    try:
        incidents, actions = observer.incidents(), stored_actions(cluster.store)
    except SQLAlchemyError:
        return ["the database does not answer"]
    problems = list(observer.false_losses())
    for name in PIPELINES:
        ledger = observer.books[name].ledger
        problems += wrong_windows(name, ledger, observer.seen[name], sorted(ledger.windows_of(*during)), excuses)
    problems += wrong_pages(incidents, pages, excuses, may_repeat=may_repeat, repeated=repeated)
    problems += forgotten_actions(dict(users.acknowledged), actions, excuses)
    problems += [f"{name} is not well" for name in _unwell(cluster)]
    return problems


def _may_repeat(nemeses: Sequence[Nemesis]) -> bool:
    """Return whether an alerter, or its way to receiver or database, is disturbed."""
    return bool({target for nemesis in nemeses for target in nemesis.targets} & {"al1", "al2", *POSTGRES, HOOK})


def _excuses(observer: Observer, nemeses: Sequence[Nemesis]) -> Excuses:
    deaths = {
        node: [*observer.cluster.programs[role.host].deaths] for role in NODES for node in nodes_of(role.pipeline)
        if node == role.node or (role.node, node) == ("shop", "mail")
    }  # fmt: skip
    forgotten = [*observer.forgotten, *(span for nemesis in nemeses for span in nemesis.forgotten)]
    return Excuses(deaths, forgotten, [*observer.away, *(span for nemesis in nemeses for span in nemesis.away)])


def _unwell(cluster: Cluster) -> Iterator[str]:
    """Yield what does not say that it is well; of two aggregators, one stands by."""
    health = {name: cluster.health(name) for name in SERVICES}
    yield from (name for name, status in health.items() if status != 200 and SERVICES[name] != "aggregator")
    if 200 not in (health["ag1"], health["ag2"]) or 0 in (health["ag1"], health["ag2"]):
        yield "the aggregator"
    if not cluster.in_sync():
        yield "Kafka"


def append_result(outcome: Outcome, path: Path = RESULTS) -> None:
    with path.open("a") as file:
        file.write(json.dumps(outcome.document()) + "\n")


def read_results(path: Path = RESULTS) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
