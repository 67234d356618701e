"""What people read of notifications, for any strings in them."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from email import message_from_bytes, policy
from html.parser import HTMLParser
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from alerting.delivery.rendering import as_html, as_text, message
from alerting.delivery.transports import slack
from alerting.delivery.transports.mail import compose
from alerting.delivery.transports.pagerduty import event
from alerting.incidents.notification import Notification
from lagloss_server.net.sanitize import one_line
from tests.fakes import pagerduty as fake_pagerduty
from tests.fakes import slack as fake_slack
from tests.fakes.notifications import body, notification

NASTY = ["<script>alert(1)</script>", "a\r\nBcc: x@y.example", '"><img src=x onerror=y>', "<!channel>", "&amp;" * 900]
NASTY += ["*_`~", "x" * 5_000, "\u202egnp.exe", "\ud800", "\0\x1b[2J", "https://e.example/|x>", "😀" * 2_000, "", " "]
nasty = st.integers(0, len(NASTY) - 1).map(NASTY.__getitem__)  # numbers, so that a failure can be read
anything = st.text(st.characters(), max_size=60) | nasty | st.builds(lambda a, b: a + b, st.text(max_size=9), nasty)


def filled(texts: list[str], action: str, opened_type: str) -> Notification:
    """A notification whose every free text comes from these."""
    pick = itertools.cycle(texts)
    found = body("resolve" if action == "resolve" else "trigger")
    found["type"] = opened_type
    found["summary"] = next(pick)
    for name in ("pipeline", "rule", "kind", "acknowledged_by", "acknowledged_at", "resolved_because"):
        found["incident"][name] = next(pick)
    found["incident"]["labels"] = {next(pick): next(pick) for _ in range(5)}
    found["breach"]["text"] = next(pick)
    found["where"] = [{**found["where"][0], "name": next(pick), "text": next(pick)} for _ in range(8)]
    found["examples"] = [
        {
            **found["examples"][0],
            **{name: next(pick) for name in ("message_id", "last_checkpoint", "trace_url")},
            "places": [next(pick)],
        }
        for _ in range(20)
    ]
    found["notes"] = [next(pick) for _ in range(3)]
    found["links"] = {"dashboard": next(pick), "runbook": f"https://{next(pick)}"}
    found["commands"] = {"acknowledge": next(pick), "silence": next(pick)}
    return replace(notification("resolve" if action == "resolve" else "trigger"), body=found)


notifications = st.builds(
    filled,
    st.lists(anything, min_size=1, max_size=6),
    st.sampled_from(["trigger", "resolve"]),
    st.sampled_from(["incident.opened", "incident.updated", "incident.reminder"]),
)
groups = st.lists(notifications, min_size=1, max_size=3)


class Tags(HTMLParser):
    """The elements of a page, and whether each was closed."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.seen: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes.update(name for name, _ in attrs)
        for name, value in attrs:
            assert name != "href" or str(value).startswith(("http://", "https://"))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@settings(max_examples=40)
@given(groups)
def test_html_holds_only_our_own_elements_whatever_the_texts_are(group: list[Notification]) -> None:
    tags = Tags()
    tags.feed(as_html(message(group)))
    tags.close()
    assert not tags.open
    assert tags.seen <= {"html", "head", "meta", "title", "body", "h2", "h3", "p", "table", "tr", "td", "a", "code"}
    assert tags.attributes <= {"lang", "charset", "style", "href"}


@settings(max_examples=40)
@given(groups)
def test_slack_takes_any_texts_and_none_is_markup(group: list[Notification]) -> None:
    payload = json.loads(json.dumps(slack.payload(message(group))).encode("utf-8", "replace"))
    assert fake_slack.error_of(payload) is None
    assert fake_slack.is_literal(payload)
    for text in fake_slack.texts(payload):
        assert not fake_slack.stray_controls(text)


@settings(max_examples=40)
@given(notifications)
def test_pagerduty_takes_any_texts(one: Notification) -> None:
    document = json.dumps(event(one, "k" * 32), ensure_ascii=False).encode("utf-8", "replace")
    assert fake_pagerduty.errors_of(json.loads(document), len(document)) == []


@settings(max_examples=40)
@given(groups)
def test_a_mail_has_only_our_own_headers_whatever_the_texts_are(group: list[Notification]) -> None:
    sent = compose(group, "lagloss <lagloss@a.example>", ["on-call@b.example"]).as_bytes(policy=policy.SMTP)
    found: Any = message_from_bytes(sent, policy=policy.default)
    expected = {"From", "To", "Subject", "Date", "Message-ID", "In-Reply-To", "References", "Auto-Submitted"}
    assert set(found.keys()) <= {*expected, "MIME-Version", "Content-Type", "Content-Transfer-Encoding"}
    assert len(found.keys()) == len(set(found.keys()))
    assert [address.addr_spec for address in found["To"].addresses] == ["on-call@b.example"]
    assert all(len(line) <= 998 for line in sent.splitlines())
    assert found.get_body(("html",)).get_content().startswith("<!DOCTYPE html>")


@given(anything, st.integers(1, 200))
def test_one_line_is_one_line_of_at_most_its_limit(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert len(line) <= limit
    assert len(line.splitlines()) <= 1
    line.encode("utf-8")


def test_a_page_says_what_since_when_where_with_examples_and_how_to_go_on() -> None:
    page = notification()
    page.body["destinations"] = [
        {"name": "snk", "due": 3_000, "dead": 2, "on_time": 2_840, "on_time_of": 2_998, "lost": {"min": 96, "max": 98}}
    ]
    page.body["incident"]["labels"] = {"team": "checkout", "tier": "1"}
    assert as_text(message([page])) == (
        "clicks: 3.20% of messages lost, target 1.00%, since 2026-11-21T08:40:00Z, most of it at link src->mid (98%)\n"
        "\n"
        "Breach:      3.20% of messages lost, target 1.00% (window 2026-11-21T08:42:00Z)\n"
        "Lost:        96 of 3,000 messages\n"
        "Since:       2026-11-21T08:40:00Z, 2 windows\n"
        "Where:       link src->mid: 94 lost, 98% of the loss\n"
        "Destination: snk: 96–98 of 3,000 messages lost, 2 dead-lettered, 94.7 % on time\n"
        "Labels:      team=checkout, tier=1\n"
        "Example:     lost at link src->mid, last seen at src.out: m-1\n"
        "Incident:    http://lagloss.example/incidents/0d9e5cf6-2b8f-4a39-9f0a-4a1c2f0b7a11\n"
        "Chart:       http://lagloss.example/pipelines/clicks/windows/2026-11-21T08:42:00Z\n"
        "Runbook:     http://docs.example/loss\n"
        "Acknowledge: lagloss alerts ack 0d9e5cf6-2b8f-4a39-9f0a-4a1c2f0b7a11\n"
        "Silence:     lagloss alerts silence pipeline=clicks rule=loss --for 2h --reason '…' --author …\n"
    )


def test_of_the_examples_traces_the_first_is_linked() -> None:
    one = notification()
    plain = {**one.body["examples"][0]}
    one.body["examples"] = [plain, *({**plain, "trace_url": f"https://traces.example/{at}"} for at in range(3))]
    links = [line for line in message([one]).sections[0].lines if line.label == "Trace"]
    assert [(line.kind, line.text) for line in links] == [("link", "https://traces.example/0")]
    assert "Trace:" in as_text(message([one]))
    one.body["examples"] = [{**plain, "trace_url": "javascript:alert(1)"}]
    assert [line.kind for line in message([one]).sections[0].lines if line.label == "Trace"] == ["text"]


def test_the_title_says_severity_state_pipeline_and_rule() -> None:
    assert message([notification()]).title == "[critical, opened] clicks: loss"
    assert message([notification("resolve")]).title == "[critical, resolved] clicks: loss"


def test_a_group_has_one_title_that_counts_and_a_section_each() -> None:
    said = message([notification("resolve"), notification(id="other", severity="warning", pipeline="orders")])

    assert said.title == "2 incidents (1 resolved, 1 warning): clicks, orders"
    assert [section.title for section in said.sections] == [
        "[critical, resolved] clicks: loss",
        "[warning, opened] orders: loss",
    ]
    assert "[warning, opened] orders: loss" in as_text(said)


def test_a_resolved_incident_says_why_and_does_not_ask_to_acknowledge_it() -> None:
    text = as_text(message([notification("resolve")]))
    assert "2026-11-21T08:50:02.120Z: recovered" in text
    assert "lagloss alerts" not in text


def test_an_acknowledged_incident_says_by_whom_and_does_not_ask_again() -> None:
    text = as_text(message([notification("acknowledge")]))
    assert "2026-11-21T08:44:00.000Z by ada" in text
    assert "lagloss alerts ack" not in text
    assert "lagloss alerts silence" in text


def test_five_examples_are_shown_and_the_rest_is_counted() -> None:
    one = notification()
    one.body["examples"] = [{**one.body["examples"][0], "message_id": f"m-{number}"} for number in range(20)]
    text = as_text(message([one]))
    assert text.count("Example:") == 6
    assert "and 15 more" in text


def test_an_example_without_a_known_id_is_shown_by_its_hash() -> None:
    one = notification()
    one.body["examples"][0]["message_id"] = None
    assert "src.out: 0f00000000000001" in as_text(message([one]))


def test_slack_shows_fifteen_incidents_of_a_large_group_and_counts_the_rest() -> None:
    payload = slack.payload(message([notification(number=number, id=str(number)) for number in range(60)]))
    assert fake_slack.error_of(payload) is None
    assert fake_slack.is_literal(payload)
    assert payload["attachments"][-1]["blocks"][0]["elements"][0]["text"] == "and 45 more"


def test_mails_of_one_incident_refer_to_the_one_that_opened_it() -> None:
    opened, resolved = (
        compose([notification(action, number)], "a@b.example", ["c@d.example"])
        for number, action in ((1, "trigger"), (2, "resolve"))
    )
    assert opened["In-Reply-To"] is None
    assert resolved["In-Reply-To"] == resolved["References"] == opened["Message-ID"]
    assert resolved["Message-ID"] != opened["Message-ID"]
    assert opened["Auto-Submitted"] == "auto-generated"
