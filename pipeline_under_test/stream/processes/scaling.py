"""Scaling: each node's group gets as many processes as the policy wants, and every change is written down."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, RootModel

from pipeline_under_test.harness.group import Group
from pipeline_under_test.harness.policies import GroupObservation, Policy, Rules, Wish, wish
from pipeline_under_test.stream.kafka.topics import PARTITIONS
from pipeline_under_test.stream.processes.observed import Observer, ProcessGroup, Watcher
from pipeline_under_test.stream.topology import CONSUMERS, SCALED

log = logging.getLogger(__name__)

RATINGS_FILE: Final = "ratings.json"
DECISIONS_FILE: Final = "scaling.jsonl"


class Rating(BaseModel):
    """Found `at`: one process took `events_per_s` with 95 % of them done within `lag_target_s`."""

    model_config = ConfigDict(frozen=True)

    events_per_s: float
    lag_target_s: float
    at: AwareDatetime


class Ratings(RootModel[dict[str, Rating]]):
    """The ratings of a pipeline's nodes, by node."""

    @classmethod
    def load(cls, data_dir: Path) -> Ratings:
        """Return the ratings in this directory; none if nothing was rated yet."""
        path = data_dir / RATINGS_FILE
        return cls.model_validate_json(path.read_text()) if path.exists() else cls({})

    def save(self, data_dir: Path) -> None:
        """Write the file that `load` reads."""
        data_dir.mkdir(parents=True, exist_ok=True)
        fresh = data_dir / f"{RATINGS_FILE}.new"
        fresh.write_text(self.model_dump_json(indent=1))
        fresh.replace(data_dir / RATINGS_FILE)


class NotRated(RuntimeError):
    """The policy needs ratings and there are none; the message gives the next step."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """Policy by which nodes are scaled, and the bounds of their processes."""

    policy: Policy = "none"
    least: int = 1
    most: int = PARTITIONS
    rules: Rules = field(default_factory=Rules)
    """The times; bounds and ratings are each node's own."""

    def bounds(self, node: str) -> tuple[int, int]:
        """Least and most processes of a node. A consumer past the number of partitions would have nothing to read; what
        is not scaled, the receiver, is one process."""
        if node not in SCALED:
            return 1, 1
        most = min(self.most, PARTITIONS) if node in CONSUMERS else self.most
        return min(self.least, most), most

    def ratings(self, data_dir: Path) -> Mapping[str, Rating]:
        """Return the rates that `pipeline rate` found, by node.

        Raises:
            NotRated: if the policy is `rated` and no node has a rating; nodes without one stay at their least.
        """
        stored = Ratings.load(data_dir).root
        if self.policy == "rated" and not stored:
            raise NotRated(f"expected ratings in {data_dir}, found none; create them with `pipeline rate NODE`")
        return stored


NO_SCALING: Final = Scaling()


class Scaler:
    """Executor of the policy: `step` is called often and never waits."""

    def __init__(
        self,
        scaling: Scaling,
        ratings: Mapping[str, Rating],
        groups: Mapping[str, Group],
        watcher: Watcher,
        data_dir: Path,
    ) -> None:
        self._policy = scaling.policy
        self._groups = {node: groups[node] for node in SCALED}
        self._rules = {
            node: replace(scaling.rules, least=group.least, most=group.most) for node, group in self._groups.items()
        }
        for node, rating in ratings.items():
            self._rules[node] = replace(self._rules[node], rating=rating.events_per_s)
        self._changed_at_s = dict.fromkeys(self._groups, time.monotonic())
        self._decided_by: dict[str, GroupObservation] = {}
        self._path = data_dir / DECISIONS_FILE
        self._observer = Observer(watcher)

    def start(self) -> None:
        """Start to observe the nodes, unless the policy is `none`."""
        if self._policy != "none":
            self._observer.start()

    def stop(self) -> None:
        self._observer.stop()

    def step(self) -> None:
        """Decide for each node with a new observation."""
        self._observer.set_groups(
            {node: ProcessGroup(group.wanted, group.pids) for node, group in self._groups.items()}
        )
        for node, group in self._groups.items():
            observations = self._observer.seen(node)
            if observations and observations[-1] is not self._decided_by.get(node) and not group.is_held:
                self._decided_by[node] = observations[-1]
                self._decide(node, group, observations)

    def seen(self) -> dict[str, dict[str, Any]]:
        """Return the newest observation of each node, to show."""
        return {node: _document(seen[-1]) for node in self._groups if (seen := self._observer.seen(node))}

    def _decide(self, node: str, group: Group, observations: tuple[GroupObservation, ...]) -> None:
        wish_ = wish(self._policy, observations, self._changed_at_s[node], self._rules[node])
        if wish_.processes == group.wanted:
            return
        group.scale(wish_.processes)
        self._changed_at_s[node] = time.monotonic()
        self._note(node, observations[-1], wish_)

    def _note(self, node: str, observed: GroupObservation, wish: Wish) -> None:
        log.warning("%s: scaling to %d processes from %d: %s", node, wish.processes, observed.processes, wish.reason)
        decision = {"at_ms": time.time_ns() // 1_000_000, "node": node, "policy": self._policy, **_document(observed)}
        decision |= {"wanted": wish.processes, "reason": wish.reason}
        with self._path.open("a") as file:
            file.write(json.dumps(decision) + "\n")


def _document(observed: GroupObservation) -> dict[str, Any]:
    """Return an observation as a document for operators."""
    return {
        "processes": observed.processes,
        "backlog": observed.backlog,
        "lag_s": round(observed.lag_s, 1),
        "cpu": round(observed.cpu, 2),
    }
