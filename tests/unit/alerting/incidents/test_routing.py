from __future__ import annotations

from alerting.incidents.routing import Escalation, ReceiverRoute, receivers_of
from lagloss_server.model.matchers import Matcher

CRITICAL = (Matcher.parse("severity=critical"),)
LABELS = {"pipeline": "clicks", "severity": "critical", "team": "checkout"}


def test_the_first_route_that_matches_takes_an_incident_and_further_ones_only_after_continue() -> None:
    pager, chat = ReceiverRoute(CRITICAL, ("pager",)), ReceiverRoute((), ("chat",))
    assert list(receivers_of([pager, chat], LABELS, 0)) == ["pager"]
    assert list(receivers_of([ReceiverRoute(CRITICAL, ("pager",), continues=True), chat], LABELS, 0)) == [
        "pager",
        "chat",
    ]
    assert list(receivers_of([pager, chat], {**LABELS, "severity": "warning"}, 0)) == ["chat"]
    assert receivers_of([pager], {**LABELS, "severity": "warning"}, 0) == {}


def test_the_first_route_that_names_a_receiver_says_how_it_is_told() -> None:
    routes = [
        ReceiverRoute((), ("chat",), continues=True, repeat_s=60, group_by=("team",)),
        ReceiverRoute((), ("chat",), repeat_s=5),
    ]
    found = receivers_of(routes, LABELS, 0)["chat"]
    assert (found.repeat_s, found.group_key) == (60, "checkout")


def test_incidents_of_a_group_have_the_labels_it_is_made_by_in_common() -> None:
    route = ReceiverRoute((), ("chat",), group_by=("team", "pipeline", "region"))
    assert receivers_of([route], LABELS, 0)["chat"].group_key == "checkout/clicks/"


def test_further_receivers_are_told_when_nobody_has_acknowledged_for_long_enough() -> None:
    steps = (Escalation(900, ("boss",)), Escalation(3_600, ("director", "pager")))
    route = ReceiverRoute((), ("pager",), escalations=steps)
    assert list(receivers_of([route], LABELS, 899)) == ["pager"]
    found = receivers_of([route], LABELS, 900)
    assert list(found) == ["pager", "boss"]
    assert (found["pager"].is_escalated, found["boss"].is_escalated) == (False, True)
    assert list(receivers_of([route], LABELS, 4_000)) == ["pager", "boss", "director"]
    assert list(receivers_of([route], LABELS, None)) == ["pager"]
