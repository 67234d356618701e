"""One incident, told to every kind of receiver by one alerter, from its opening to its end."""

from __future__ import annotations

from pathlib import Path

from lagloss_server.incidents import actions as incident_actions
from lagloss_server.store.schema.alerting import IncidentRow, OutboxMessageRow
from lagloss_server.store.store import Store
from tests.fakes.alertmanager import run_alertmanager
from tests.fakes.mail import Mailbox, smtp_server
from tests.fakes.pagerduty import FakePagerDuty
from tests.fakes.slack import FakeSlack
from tests.support.alerting_world import Somebody, alerter, alerting_file, close_windows, rows, webhook
from tests.support.kafka_log import wait_for

KEY = "0123456789abcdef0123456789abcdef"


def test_every_kind_of_receiver_hears_of_one_incident_from_its_opening_to_its_end(
    database_url: str, watched: Store, receiver: Somebody, tmp_path: Path
) -> None:
    with (
        run_alertmanager(tmp_path / "am") as alertmanager,
        FakePagerDuty(KEY) as pager,
        FakeSlack() as slack,
        smtp_server(Mailbox()) as mailbox,
    ):
        mail = {"host": "127.0.0.1", "port": mailbox.port, "tls": "none", "from": "lagloss@example.org"}
        receivers = {
            "pager": {"pagerduty": {"routingKey": {"env": "PD_KEY"}, "url": pager.url, "allowPrivate": True}},
            "chat": {"slack": {"url": slack.url, "allowPrivate": True}},
            "am": {"alertmanager": {"urls": [alertmanager.url], "allowPrivate": True}},
            "mail": {"mail": {**mail, "to": ["sre@example.org"]}},
            "hook": webhook(receiver.url),
        }
        file = alerting_file(tmp_path, receivers)
        with alerter(database_url, LAGLOSS_ALERTING_FILE=file, PD_KEY=KEY):

            def all_sent(of_each: int) -> bool:
                outcomes = [row.outcome for row in rows(watched, OutboxMessageRow)]
                return outcomes == ["sent"] * of_each * len(receivers)

            close_windows(watched, "ll")
            wait_for(lambda: all_sent(1), what="the opening")
            [incident] = rows(watched, IncidentRow)
            key = str(incident.id)
            assert pager.alerts == {key: "triggered"}
            [alert] = alertmanager.alerts()
            assert alert["labels"]["pipeline"] == "chain"
            assert alert["labels"]["team"] == "checkout"
            incident_actions.acknowledge(watched, key, "ann", "on it")
            wait_for(lambda: all_sent(2), what="the acknowledgement")
            assert pager.alerts == {key: "acknowledged"}
            close_windows(watched, "ooo", first=2)
            wait_for(lambda: all_sent(3), what="the end")
        assert pager.alerts == {key: "resolved"}
        assert pager.opened == [key]
        wait_for(lambda: alertmanager.alerts() == [], what="Alertmanager to have ended it")
    assert receiver.types == ["opened", "acknowledged", "resolved"]
    assert len(slack.messages) == 3
    mails = [mail for _, mail in mailbox.mails]
    assert [each["References"] for each in mails] == [None, mails[0]["Message-ID"], mails[0]["Message-ID"]]
