"""Suppression of an incident's notifications, by a silence, maintenance, or another fault that explains it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from dateutil.rrule import rrule

from lagloss_server.incidents.incident import Withheld
from lagloss_server.model.matchers import Matcher, match_all


@dataclass(frozen=True, slots=True)
class ActiveSilence:
    """Silence that a user has set, while it lasts."""

    id: str
    matchers: tuple[Matcher, ...]
    author: str
    reason: str


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Recurring maintenance window. Its starts and its duration are on the clock of `zone`."""

    name: str
    matchers: tuple[Matcher, ...]
    starts: rrule
    zone: ZoneInfo
    duration: timedelta
    reason: str

    def is_on(self, now: datetime) -> bool:
        local = now.astimezone(self.zone).replace(tzinfo=None)
        began = self.starts.before(local, inc=True)
        return began is not None and local < began + self.duration


@dataclass(frozen=True, slots=True)
class SuppressionContext:
    """Causes that can suppress the incidents of one pipeline. `open_rules`: its rules with an open incident, and that
    one's severity; `blind_upstream`: pipelines that it follows and that are blind."""

    silences: Sequence[ActiveSilence] = ()
    maintenance: Sequence[Maintenance] = ()
    open_rules: Mapping[str, str] = field(default_factory=dict)
    blind_upstream: Collection[str] = ()


def blind_upstream(pipeline: str, upstream: Iterable[str], blind: Mapping[str, str | None]) -> set[str]:
    """Return the upstream pipelines that withhold the incidents of this one: blind ones that are not withheld because
    of it, however many lie between, so that in a ring of blind pipelines one pages. `blind`: by pipeline, the upstream
    one that withholds its incident."""
    return {name for name in upstream if name in blind and not _is_withheld_by(pipeline, name, blind)}


def _is_withheld_by(pipeline: str, name: str, blind: Mapping[str, str | None]) -> bool:
    """Return whether a blind pipeline is withheld because of this one, or in a ring of others that is to open first."""
    passed = {pipeline}
    while name not in passed:
        passed.add(name)
        cause = blind[name]
        if cause is None or cause not in blind:
            return False
        name = cause
    return True


def covers(open_severity: str | None, severity: str) -> bool:
    """Return whether an open incident of a rule that explains another one withholds it: a ticket withholds no page."""
    return open_severity is not None and (open_severity == "critical" or severity == "warning")


def suppression_reason(
    labels: Mapping[str, str], inhibited_by: Sequence[str], around: SuppressionContext, now: datetime
) -> Withheld | None:
    """Return the first of what withholds an incident with these labels; None if its receivers are notified."""
    for silence in around.silences:
        if match_all(silence.matchers, labels):
            return Withheld("silence", silence.id, silence.author, silence.reason)
    for window in around.maintenance:
        if match_all(window.matchers, labels) and window.is_on(now):
            return Withheld("maintenance", window.name, reason=window.reason)
    for rule in inhibited_by:
        if covers(around.open_rules.get(rule), labels["severity"]):
            return Withheld("rule", rule)
    for pipeline in sorted(around.blind_upstream):
        return Withheld("upstream", pipeline)
    return None
