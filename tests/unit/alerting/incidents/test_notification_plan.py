"""What receivers are told of an incident, over stories in which anything may happen at any time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from alerting.incidents.notification_plan import (
    FALLBACK_AFTER_S,
    IncidentStatus,
    NotificationPolicy,
    PlannedNotification,
    SentNotification,
    is_news,
    is_of_severity,
    plan,
    seconds_since_trigger,
    to_withdraw,
)
from alerting.incidents.routing import RoutedReceiver

START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
REPEAT_S = 14_400.0


def body(
    worst: float = 0.03,
    place: str | None = "src->mid",
    share: float = 0.9,
    notes: tuple[str, ...] = (),
    severity: str = "critical",
) -> Any:
    where = [{"kind": "link", "name": place, "share": share}] if place else []
    breach = {"worst": worst, "target": 0.01}
    return {"incident": {"severity": severity}, "breach": breach, "where": where, "notes": list(notes)}


def to(*names: str) -> dict[str, RoutedReceiver]:
    return {name: RoutedReceiver(name, "clicks", 0, REPEAT_S) for name in names}


OPEN = IncidentStatus(True, False, "opened", body())


@dataclass
class Story:
    """An incident, its receivers and their outbox, as time goes on."""

    policy: NotificationPolicy = field(default_factory=NotificationPolicy)
    told: list[SentNotification] = field(default_factory=list)
    standing: IncidentStatus = OPEN
    goes_to: dict[str, RoutedReceiver] = field(default_factory=lambda: to("pager"))
    now: datetime = START
    leads_since: datetime | None = None
    queued: int = 0

    def look(self) -> list[PlannedNotification]:
        """Plans and queues until nothing is due, as evaluation after evaluation does."""
        made: list[PlannedNotification] = []
        for _ in range(5):
            withdrawn = to_withdraw(self.standing, self.told)
            self.told = [row for row in self.told if row not in withdrawn]
            orders = plan(self.standing, self.told, self.goes_to, self.policy, self.now, self.leads_since)
            if not orders:
                return made
            made += orders
            for order in orders:
                notes = [*self.standing.body["notes"], *([order.note] if order.note else [])]
                queued = {**self.standing.body, "notes": notes}
                due_at = self.now + timedelta(seconds=order.wait_s)
                self.queued += 1
                self.told.append(
                    SentNotification(
                        self.queued,
                        order.receiver,
                        order.action,
                        order.change,
                        self.now,
                        due_at,
                        queued,
                        order.group_key,
                    )
                )
        raise AssertionError(f"there is always something more to tell: {made}")

    def later(self, seconds: float) -> Story:
        self.now += timedelta(seconds=seconds)
        return self

    def actions(self, receiver: str = "pager") -> list[str]:
        return [row.action for row in self.told if row.receiver == receiver]

    def answered(self, outcome: str, receiver: str = "pager") -> None:
        self.told = [
            replace(row, outcome=outcome, attempts=1) if row.receiver == receiver and row.outcome is None else row
            for row in self.told
        ]


def test_an_incident_is_told_once_and_its_end_once() -> None:
    story = Story()
    assert [(order.action, order.change) for order in story.look()] == [("trigger", "opened")]
    assert story.later(60).look() == []
    story.standing = replace(OPEN, is_open=False, change="resolved")
    assert [(order.action, order.change) for order in story.look()] == [("resolve", "resolved")]
    assert story.later(60).look() == []


def test_who_was_told_nothing_hears_of_no_end() -> None:
    story = Story(standing=replace(OPEN, withheld="silence"))
    assert story.look() == []
    story.standing = replace(OPEN, is_open=False, change="resolved")
    assert story.look() == []


def test_when_a_silence_ends_its_open_incident_is_told() -> None:
    story = Story(standing=replace(OPEN, withheld="silence"))
    assert story.look() == []
    story.standing = OPEN
    assert [order.action for order in story.look()] == ["trigger"]


def test_a_silence_keeps_reminders_and_updates_back_but_not_the_end() -> None:
    story = Story()
    story.look()
    story.answered("sent")
    story.standing = replace(OPEN, withheld="silence", body=body(worst=0.5))
    assert story.later(REPEAT_S).look() == []
    story.standing = replace(OPEN, is_open=False, change="resolved", withheld="silence")
    assert story.look()[0].action == "resolve"


def test_a_silence_takes_back_what_nobody_has_tried_to_send_until_it_ends() -> None:
    story = Story()
    story.look()
    story.standing = replace(OPEN, withheld="silence")
    story.look()
    assert story.actions() == []
    story.standing = OPEN
    assert [order.change for order in story.look()] == ["opened"]
    story.answered("sent")
    story.standing = replace(OPEN, body=body(worst=0.5))
    assert [order.action for order in story.look()] == ["update"]
    story.standing = replace(story.standing, withheld="silence")
    story.look()
    assert story.actions() == ["trigger"]
    story.standing = replace(story.standing, withheld=None)
    assert [order.action for order in story.look()] == ["update"]


def test_an_acknowledgement_takes_back_what_nobody_has_tried_to_send_and_who_knows_hears_of_it() -> None:
    story = Story(goes_to=to("pager", "chat"))
    story.look()
    story.answered("sent", "chat")
    story.standing = replace(OPEN, is_acknowledged=True)
    assert [(order.receiver, order.action) for order in story.look()] == [("chat", "acknowledge")]
    assert story.actions() == []
    story.standing = replace(OPEN, is_open=False, change="resolved")
    assert [order.receiver for order in story.look()] == ["chat"]


def test_a_reminder_that_waits_is_taken_back_when_somebody_takes_the_incident() -> None:
    story = Story()
    story.look()
    story.answered("sent")
    assert [order.change for order in story.later(REPEAT_S).look()] == ["reminder"]
    story.standing = replace(OPEN, is_acknowledged=True)
    story.look()
    assert story.actions() == ["trigger", "acknowledge"]


def test_what_another_receiver_refused_is_not_taken_back_from_the_fallback() -> None:
    story = Story()
    story.look()
    story.told = [replace(row, receiver="mail", change="fallback") for row in story.told]
    for standing in (replace(OPEN, withheld="silence"), replace(OPEN, is_acknowledged=True)):
        assert to_withdraw(standing, story.told) == []


def test_an_incident_that_comes_back_is_triggered_again() -> None:
    story = Story()
    story.look()
    story.standing = replace(OPEN, is_open=False, change="resolved")
    story.look()
    story.standing = OPEN
    assert [(order.action, order.change) for order in story.look()] == [("trigger", "reopened")]


def test_nobody_is_reminded_of_what_somebody_took() -> None:
    story = Story()
    story.look()
    story.answered("sent")
    assert story.later(REPEAT_S - 1).look() == []
    assert [order.change for order in story.later(1).look()] == ["reminder"]
    story.standing = replace(OPEN, is_acknowledged=True)
    assert [order.action for order in story.look()] == ["acknowledge"]
    assert story.later(10 * REPEAT_S).look() == []


def test_who_has_not_taken_a_message_yet_is_not_reminded_of_it() -> None:
    story = Story()
    story.look()
    assert story.later(3 * REPEAT_S).look() == []
    story.answered("sent")
    assert [order.change for order in story.look()] == ["reminder"]


def test_a_receiver_that_forgets_is_told_again_while_it_is_open_also_when_it_is_silenced() -> None:
    story = Story(policy=NotificationPolicy(resend_s={"pager": 60}))
    story.look()
    story.answered("sent")
    assert story.later(59).look() == []
    assert [order.action for order in story.later(1).look()] == ["refresh"]
    story.standing = replace(OPEN, withheld="silence")
    assert [order.action for order in story.later(60).look()] == ["refresh"]


def test_an_update_is_sent_when_it_is_half_as_bad_again_elsewhere_or_revised_and_not_each_minute() -> None:
    known = body(worst=0.03)
    assert not is_news(known, body(worst=0.0399))
    assert is_news(known, body(worst=0.0401))
    assert is_news(known, body(place="mid->snk"))
    assert not is_news(body(share=0.4), body(place="mid->snk", share=0.4))
    assert is_news(known, body(notes=("revised",)))
    assert not is_news(body(notes=("revised",)), body())


def test_a_refusal_leaves_a_receiver_untold_until_the_incident_comes_back() -> None:
    story = Story()
    story.look()
    story.answered("failed")
    story.standing = replace(OPEN, body=body(worst=0.9), is_acknowledged=True)
    assert story.later(10 * REPEAT_S).look() == []
    story.standing = replace(OPEN, is_open=False, change="resolved")
    assert story.look() == []


def test_what_a_receiver_does_not_take_for_minutes_goes_to_the_fallback_too_and_ends_there_too() -> None:
    story = Story(policy=NotificationPolicy(fallback="mail"))
    story.look()
    assert story.later(FALLBACK_AFTER_S).look() == []  # nobody has even tried
    story.told = [replace(row, attempts=3) for row in story.told]
    (order,) = story.look()
    assert (order.receiver, order.action, order.change) == ("mail", "trigger", "fallback")
    assert order.note is not None
    assert "pager has not accepted" in order.note
    assert story.later(FALLBACK_AFTER_S).look() == []
    story.standing = replace(OPEN, is_open=False, change="resolved")
    assert {order.receiver for order in story.look()} == {"pager", "mail"}


def test_what_waits_for_minutes_behind_a_hanging_receiver_goes_to_the_fallback_too() -> None:
    story = Story(policy=NotificationPolicy(fallback="mail"), leads_since=START + timedelta(seconds=100))
    story.goes_to = {"pager": RoutedReceiver("pager", "clicks", 200, REPEAT_S)}
    story.look()
    assert story.later(200 + FALLBACK_AFTER_S - 1).look() == []  # its group's wait is no delay
    assert [(order.receiver, order.change) for order in story.later(1).look()] == [("mail", "fallback")]


def test_what_waited_while_no_alerter_ran_does_not_go_to_the_fallback_at_once() -> None:
    story = Story(policy=NotificationPolicy(fallback="mail"))
    story.look()
    story.leads_since = story.later(3_600).now
    assert story.later(FALLBACK_AFTER_S - 1).look() == []
    assert [order.receiver for order in story.later(1).look()] == ["mail"]


def test_a_reopened_incident_that_its_receiver_refused_goes_to_the_fallback_again() -> None:
    story = Story(policy=NotificationPolicy(fallback="mail"))
    story.look()
    story.answered("failed")
    for _ in range(3):
        (order,) = story.look()
        assert (order.receiver, order.action, order.change) == ("mail", "trigger", "fallback")
        assert order.note == "receiver pager has refused this incident before"
        story.answered("sent", "mail")
        assert story.later(FALLBACK_AFTER_S).look() == []
        story.standing = replace(OPEN, is_open=False, change="resolved")
        assert [(order.receiver, order.action) for order in story.look()] == [("mail", "resolve")]
        story.standing = OPEN


def test_a_refusal_is_not_raised_while_the_incident_is_withheld_acknowledged_or_routed_elsewhere() -> None:
    story = Story(policy=NotificationPolicy(fallback="mail"))
    story.look()
    story.answered("failed")
    for standing in (replace(OPEN, withheld="silence"), replace(OPEN, is_acknowledged=True)):
        story.standing = standing
        assert story.look() == []
    story.standing, story.goes_to = OPEN, {}
    assert story.look() == []
    story.goes_to = to("pager", "mail")
    assert [(order.receiver, order.change) for order in story.look()] == [("mail", "opened")]


def test_escalation_counts_from_when_somebody_was_told() -> None:
    story = Story()
    assert seconds_since_trigger(story.told, story.now) == 0
    story.look()
    assert seconds_since_trigger(story.told, story.later(90).now) == 90
    story.standing = replace(OPEN, is_open=False, change="resolved")
    story.look()
    assert seconds_since_trigger(story.told, story.now) == 0
    escalated = RoutedReceiver("boss", "clicks", 0, REPEAT_S, is_escalated=True)
    story.standing, story.goes_to = OPEN, {**to("pager"), "boss": escalated}
    assert [(order.receiver, order.change) for order in story.look()] == [("pager", "reopened"), ("boss", "escalated")]


def test_who_knows_the_ticket_is_triggered_again_when_it_becomes_a_page_and_others_for_the_first_time() -> None:
    ticket = replace(OPEN, body=body(severity="warning"))
    story = Story(standing=ticket, goes_to=to("mail"))
    assert [order.change for order in story.look()] == ["opened"]
    story.answered("sent", "mail")
    story.standing = replace(ticket, is_acknowledged=True)
    assert [order.action for order in story.later(600).look()] == ["acknowledge"]
    story.standing, story.goes_to = OPEN, to("pager")  # a page is not acknowledged with its ticket
    assert [(order.receiver, order.action, order.change) for order in story.later(600).look()] == [
        ("pager", "trigger", "opened"),
        ("mail", "trigger", "raised"),
    ]
    story.answered("sent")
    story.standing = replace(OPEN, is_acknowledged=True)
    assert [(order.receiver, order.action) for order in story.later(60).look()] == [
        ("pager", "acknowledge"),
        ("mail", "acknowledge"),
    ]
    story.standing = replace(OPEN, is_open=False, change="resolved")
    assert {order.receiver for order in story.look()} == {"pager", "mail"}


def test_what_a_ticket_waited_counts_for_no_escalation_of_its_page() -> None:
    story = Story(standing=replace(OPEN, body=body(severity="warning")))
    story.look()
    story.standing = OPEN
    story.later(3_600).look()
    of_page = [row for row in story.told if is_of_severity(row, "critical")]
    assert seconds_since_trigger(story.told, story.now) == 3_600
    assert seconds_since_trigger(of_page, story.later(90).now) == 90


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("stand"), st.booleans(), st.booleans(), st.sampled_from([None, "silence"])),
        st.tuples(st.just("worst"), st.floats(0.011, 1), st.sampled_from(["critical", "critical", "warning"])),
        st.tuples(st.just("route"), st.sets(st.sampled_from(["pager", "chat", "mail"]))),
        st.tuples(st.just("answer"), st.sampled_from(["pager", "chat", "mail"]), st.sampled_from(["sent", "failed"])),
        st.tuples(st.just("wait"), st.sampled_from([1.0, 61.0, 301.0, 15_000.0])),
    ),
    max_size=30,
)


@given(EVENTS, st.booleans())
def test_whatever_happens_every_receiver_hears_a_story_that_makes_sense(events: list[Any], has_fallback: bool) -> None:
    policy = NotificationPolicy("mail" if has_fallback else None, {"chat": 60.0})
    story = Story(policy=policy, standing=replace(OPEN, is_open=False, change="resolved"))
    for event in events:
        match event:
            case ("stand", is_open, is_acknowledged, withheld):
                change = "opened" if is_open else "resolved"
                story.standing = IncidentStatus(
                    is_open, is_acknowledged and is_open, change, story.standing.body, withheld
                )
            case ("worst", worst, severity):
                story.standing = replace(story.standing, body=body(worst=worst, severity=severity))
            case ("route", names):
                story.goes_to = to(*sorted(names))
            case ("answer", receiver, outcome):
                story.answered(outcome, receiver)
            case ("wait", seconds):
                story.later(seconds)
        story.look()
        for receiver in ("pager", "chat", "mail"):
            check(story, receiver)
        is_due = story.standing.is_open and story.standing.withheld is None and not story.standing.is_acknowledged
        if has_fallback and is_due and story.goes_to:
            routed = [row for row in episodes(story, *story.goes_to, "mail") if row.action == "trigger"]
            assert any(row.outcome != "failed" or row.receiver == "mail" for row in routed), "no receiver has it"


def episodes(story: Story, *receivers: str) -> list[SentNotification]:
    """What was sent to these since the last resolve of each."""
    rows: dict[str, list[SentNotification]] = {}
    for row in (row for row in story.told if row.receiver in receivers):
        rows[row.receiver] = [] if row.action == "resolve" else [*rows.get(row.receiver, ()), row]
    return [row for receiver in rows for row in rows[receiver]]


def check(story: Story, receiver: str) -> None:
    """The obvious: triggers come first, an end comes once, and what has to be told is told."""
    knows, was_refused = False, False
    for row in (row for row in story.told if row.receiver == receiver):
        if row.action == "trigger":
            knows, was_refused = knows or row.outcome != "failed", row.outcome == "failed" and not knows
        else:
            assert knows or was_refused, f"{row.action} before a trigger"
            if row.action == "resolve":
                knows = was_refused = False
    standing = story.standing
    waiting = [row for row in episodes(story, receiver) if row.is_untried and row.change != "fallback"]
    if standing.is_open and standing.withheld is not None:
        assert not any(row.action in ("trigger", "update") for row in waiting), "it is silenced, and about to be told"
    if not standing.is_open:
        assert not knows, "the incident is over, and it has not been told"
    elif standing.withheld is None and not standing.is_acknowledged and receiver in story.goes_to:
        assert knows or was_refused, "the incident is open, and it has not been told"
