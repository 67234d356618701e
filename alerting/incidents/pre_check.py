"""Pre-check: leaves out pipelines in which nothing can have changed, so that most cost a turn nothing.

A pipeline is settled when its last turn left no breach pending, nor an open incident of a rule that goes by more than
the news of windows. It stays so until one of its windows is closed, a rule comes due by the clock, or one of the
statements here, each for all pipelines at once, finds something new.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, or_, select

from alerting.incidents import repository as incidents
from alerting.incidents.lifecycle import KnownIncident
from alerting.rules import Rule
from alerting.rules.blind import ReportsHealth
from alerting.rules.jobs import JobRule
from alerting.rules.lost_afterwards import LostAfterwards
from alerting.rules.time_to_loss import TimeToLoss
from alerting.views.silent_nodes import read_silent
from lagloss.wire.format import WINDOW_S
from lagloss_server.groups.progress import NOW_S
from lagloss_server.incidents.lost_afterwards_store import pipelines_with_outstanding
from lagloss_server.model.definition import StoredPipeline
from lagloss_server.store.schema.alerting import PendingBreachRow
from lagloss_server.store.schema.core import ConsumerLagRow, is_any


@dataclass(slots=True)
class SettledPipeline:
    """A version of a pipeline in which there is nothing to find, as long as nothing is new.

    `known`: by rule, its open incident and those that were resolved within a day. Epoch s: `due_s`, when a rule can
    find a breach by the clock, and `read_again_s`, when the pipeline is to be read completely, whatever was closed.
    `awaited_s`: how long after messages came in a rule comes due. `has_groups`: whether a rule goes by consumer groups.
    `has_rechecks`: whether one goes by rows of tables that are compared again.
    """

    version: int
    known: Mapping[str, Sequence[KnownIncident]]
    due_s: float
    awaited_s: float
    read_again_s: float
    has_groups: bool
    has_rechecks: bool


class PreCheck:
    """The pipelines that are settled; used by one thread."""

    def __init__(self) -> None:
        self._settled: dict[str, SettledPipeline] = {}

    def settle(self, name: str, settled: SettledPipeline) -> None:
        self._settled[name] = settled

    def take(self, pipeline: StoredPipeline) -> SettledPipeline | None:
        """Remove a pipeline and return it, if it was settled in this version."""
        settled = self._settled.pop(pipeline.name, None)
        return settled if settled is not None and settled.version == pipeline.version else None

    def clear(self) -> None:
        """Forget all: closings went by unheard, or another alerter led."""
        self._settled.clear()

    def retain(self, names: Collection[str]) -> None:
        """Forget all pipelines but these."""
        self._settled = {name: settled for name, settled in self._settled.items() if name in names}

    def find_due(
        self, connection: Connection, versions: Mapping[str, int], first_seen_s: Mapping[str, float], now_s: float
    ) -> list[str]:
        """Return those of these pipelines, given with their newest versions, that need a turn, though no window of them
        is known to have been closed. `first_seen_s`: of those of which messages came in, when the first was known."""
        for name in self._find_changed(connection, now_s):
            self._settled.pop(name, None)
        with_open = incidents.pipelines_with_open(connection)
        for name, seen_s in first_seen_s.items():
            if (settled := self._settled.get(name)) is not None:
                settled.due_s = min(settled.due_s, seen_s + settled.awaited_s)
        due = []
        for name, version in versions.items():
            settled = self._settled.get(name)
            if settled is None or settled.version != version or settled.read_again_s <= now_s:
                self._settled.pop(name, None)
                due.append(name)
            elif settled.due_s <= now_s or name in with_open:
                due.append(name)
        return due

    def _find_changed(self, connection: Connection, now_s: float) -> set[str]:
        """Return the pipelines with a pending breach, a silent node, a partition at risk, or messages that are lost
        afterwards."""
        pending = set(connection.execute(select(PendingBreachRow.pipeline).distinct()).scalars())
        silent = read_silent(connection, now_s).keys()
        with_groups = [name for name, settled in self._settled.items() if settled.has_groups]
        with_rechecks = {name for name, settled in self._settled.items() if settled.has_rechecks}
        lost_afterwards = with_rechecks & pipelines_with_outstanding(connection, now_s) if with_rechecks else set()
        return pending | silent | _at_risk(connection, now_s, with_groups) | lost_afterwards


def is_judged_by_news(rule: Rule | None) -> bool:
    """Return whether the news of windows has all that a rule with an open incident goes by."""
    return rule is not None and not isinstance(rule, ReportsHealth | TimeToLoss | LostAfterwards | JobRule)


def has_groups(rules: Iterable[Rule]) -> bool:
    """Return whether one of these rules goes by consumer groups."""
    return any(isinstance(rule, TimeToLoss) for rule in rules)


def has_rechecks(rules: Iterable[Rule]) -> bool:
    """Return whether one of these rules goes by rows of tables that are compared again."""
    return any(isinstance(rule, LostAfterwards) for rule in rules)


def _at_risk(connection: Connection, now_s: float, pipelines: Collection[str]) -> set[str]:
    """Return the pipelines with a partition of which messages were deleted unread, or will be."""
    if not pipelines:
        return set()
    row = ConsumerLagRow
    query = select(row.pipeline).where(
        is_any(row.pipeline, pipelines),
        row.window_start >= int(now_s) - NOW_S,
        row.window_start < int(now_s) + WINDOW_S,
        or_(row.deleted > 0, row.loss_at.is_not(None)),
    )
    return set(connection.execute(query.distinct()).scalars())
