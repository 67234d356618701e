"""Routing of incidents to receivers, by their labels and the time without an acknowledgement. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lagloss_server.model.matchers import Matcher, match_all


@dataclass(frozen=True, slots=True)
class Escalation:
    """Further receivers of an incident that is not acknowledged `after_s` after its opening."""

    after_s: float
    receivers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReceiverRoute:
    """Incidents that match go to `receivers`, and on to the next route if it `continues`.

    `group_by`: labels that notifications of one group have in common; `group_wait_s`: how long one waits for others of
    its group.
    """

    matchers: tuple[Matcher, ...]
    receivers: tuple[str, ...]
    continues: bool = False
    repeat_s: float = 4 * 3_600
    group_by: tuple[str, ...] = ("pipeline",)
    group_wait_s: float = 0
    escalations: tuple[Escalation, ...] = ()


@dataclass(frozen=True, slots=True)
class RoutedReceiver:
    """Receiver of an incident with its route's options. `is_escalated`: by an escalation."""

    receiver: str
    group_key: str
    group_wait_s: float
    repeat_s: float
    is_escalated: bool = False


def receivers_of(
    routes: Sequence[ReceiverRoute], labels: Mapping[str, str], unacknowledged_s: float | None
) -> dict[str, RoutedReceiver]:
    """Return the routed receivers by name; the first route that names a receiver sets its options.

    Args:
        unacknowledged_s: how long it has been open without being acknowledged; None: it was.
    """
    routed: dict[str, RoutedReceiver] = {}
    for route in _matching(routes, labels):
        group_key = "/".join(labels.get(label, "") for label in route.group_by)
        for receiver in route.receivers:
            routed.setdefault(receiver, RoutedReceiver(receiver, group_key, route.group_wait_s, route.repeat_s))
        for step in route.escalations:
            if unacknowledged_s is not None and unacknowledged_s >= step.after_s:
                for receiver in step.receivers:
                    routed.setdefault(
                        receiver, RoutedReceiver(receiver, group_key, 0, route.repeat_s, is_escalated=True)
                    )
    return routed


def _matching(routes: Sequence[ReceiverRoute], labels: Mapping[str, str]) -> Iterable[ReceiverRoute]:
    for route in routes:
        if match_all(route.matchers, labels):
            yield route
            if not route.continues:
                return
