"""Scheduled reports through a real SMTP server and a real PostgreSQL: once each, whatever happens in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final

import pytest
from sqlalchemy import select, text

from dashboard.reports.ranges import CalendarRange
from dashboard.reports.schedule.file import ReportsFile
from dashboard.reports.schedule.mail import ReportPart
from dashboard.reports.schedule.runs import Runs
from dashboard.reports.schedule.scheduler import FORGETS_EVERY_S, WAIT_AT_MOST_S, Scheduler
from lagloss_server.base.settings import Settings
from lagloss_server.incidents.deliveries import outbox_table
from lagloss_server.net.outcome import GIVE_UP_AFTER_S, backoff_s
from lagloss_server.store.schema import core as tables
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.schema.dashboard import ReportRunRow
from lagloss_server.store.store import Store
from tests.fakes.mail import Mailbox, smtp_server
from tests.support.incident_rows import store_receiver
from tests.support.kafka_log import wait_for
from tests.support.window_documents import chain, document, store_window

ADA, BOB = "ada@a.example", "bob@b.example"
MONDAY: Final = int(datetime.fromisoformat("2026-11-16T07:00:00+00:00").timestamp())
"""When the weekly report is due: 8 o'clock in Berlin."""
WEEK_S: Final = 7 * 86_400
SOON_S: Final = 600
"""After it is due, its windows have had their grace."""


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with smtp_server(Mailbox()) as running:
        yield running


@pytest.fixture(autouse=True)
def pipeline(store: Store) -> None:
    store.apply(chain(), 0)


def reports(mailbox: Mailbox, *addresses: str, **more: Any) -> ReportsFile:
    weekly = {
        "name": "weekly", "pipelines": "all", "range": "last-week", "zone": "Europe/Berlin", "formats": ["md"],
        "rrule": "FREQ=WEEKLY;BYDAY=MO;BYHOUR=8", "to": list(addresses or (ADA,)), **more,
    }  # fmt: skip
    mail = {"host": "127.0.0.1", "port": mailbox.port, "tls": "none", "from": "lagloss <lagloss@l.example>"}
    return ReportsFile.model_validate(
        {"apiVersion": "lagloss/v1", "kind": "Reports", "mail": mail, "reports": [weekly]}
    )


def part(_store: Store, pipeline: str, _span: CalendarRange, _formats: tuple[str, ...], _now_s: float) -> ReportPart:
    return ReportPart(pipeline, "✔ MET", ("Loss MET.",))


def scheduler(
    store: Store, file: ReportsFile, make: Callable[..., ReportPart] | None = part, **more: float
) -> Scheduler:
    """One that knows its schedule since the week before MONDAY, and tries again at once."""
    made = Scheduler(store, Settings(), file, make, Runs(store.engine, **{"first_retry_s": 0.0, **more}))
    made.look(MONDAY - 1)
    return made


def runs(store: Store) -> list[tuple[int, str | None, int, str | None]]:
    """Due (epoch s), outcome, attempts and error of each run, oldest first."""
    table = table_of(ReportRunRow)
    with store.engine.connect() as connection:
        rows = connection.execute(select(table).order_by(table.c.due_at)).all()
    return [(int(row.due_at.timestamp()), row.outcome, row.attempts, row.last_error) for row in rows]


def change(store: Store, statement: str) -> None:
    with store.engine.begin() as connection:
        connection.execute(text(statement))


def test_a_report_is_mailed_when_it_is_due_and_once(store: Store, mailbox: Mailbox) -> None:
    weekly = scheduler(store, reports(mailbox), make=None)
    assert mailbox.mails == []
    weekly.look(MONDAY + SOON_S)
    weekly.look(MONDAY + SOON_S + 60)

    ((recipients, mail),) = mailbox.mails
    assert recipients == [ADA]
    assert mail["Subject"] == "SLA report weekly: 2026-W46 (Europe/Berlin)"
    (attached,) = mail.iter_attachments()
    assert attached.get_filename() == "lagloss-chain-2026-W46.md"
    assert "# SLA report: chain, 2026-W46" in attached.get_content().replace("\\", "")
    assert runs(store)[-1] == (MONDAY, "sent", 1, None)


def test_a_schedule_that_is_new_does_not_mail_the_time_before_it(store: Store, mailbox: Mailbox) -> None:
    scheduler(store, reports(mailbox))
    scheduler(store, reports(mailbox)).look(MONDAY - 1)
    assert runs(store) == [(MONDAY - WEEK_S, "skipped", 0, "it was due before the schedule was added")]
    later = scheduler(store, reports(mailbox, rrule="FREQ=WEEKLY;BYDAY=SU"))
    later.look(MONDAY - 1)
    assert mailbox.mails == []


def test_of_two_schedulers_one_mails_it(store: Store, mailbox: Mailbox) -> None:
    both = [scheduler(store, reports(mailbox)) for _ in range(2)]
    gate = threading.Barrier(2)

    def look(one: Scheduler) -> None:
        gate.wait(10)
        one.look(MONDAY + SOON_S)

    threads = [threading.Thread(target=look, args=(one,)) for one in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(mailbox.mails) == 1
    assert runs(store)[-1] == (MONDAY, "sent", 1, None)


def test_a_recipient_that_is_put_off_gets_it_later_and_the_others_not_again(store: Store, mailbox: Mailbox) -> None:
    mailbox.answers = {BOB: "450 4.2.0 greylisted"}
    scheduler(store, reports(mailbox, ADA, BOB)).look(MONDAY + SOON_S)
    due, outcome, attempts, error = runs(store)[-1]
    assert (due, outcome, attempts) == (MONDAY, None, 1)
    assert error == f"the mail server rejected 1 of 2 recipients: {BOB}: 450 4.2.0 greylisted"

    mailbox.answers = {}
    scheduler(store, reports(mailbox, ADA, BOB)).look(MONDAY + SOON_S)  # another process
    assert [recipients for recipients, _ in mailbox.mails] == [[ADA], [BOB]]
    assert len({mail["Message-ID"] for _, mail in mailbox.mails}) == 1
    assert runs(store)[-1] == (MONDAY, "sent", 2, None)


def queued(store: Store) -> list[tuple[str, str, str]]:
    """Receiver, title of the first part and key of each message in the outbox."""
    with store.engine.connect() as connection:
        rows = connection.execute(select(outbox_table).order_by(outbox_table.c.id)).all()
    assert {(row.action, row.incident_id, row.done_at) for row in rows} <= {("report", None, None)}
    return [(row.receiver, row.body["parts"][0]["title"], row.body["idempotency_key"]) for row in rows]


def know_receivers(store: Store, **kinds: str) -> None:
    with store.engine.begin() as connection:
        for name, kind in kinds.items():
            store_receiver(connection, name, kind)


def test_a_report_is_queued_for_receivers_once_beside_its_mail(store: Store, mailbox: Mailbox) -> None:
    know_receivers(store, chat="slack", hook="webhook")
    mailbox.answers = {ADA: "450 4.2.0 greylisted"}
    file = reports(mailbox, receivers=["chat", "hook"])
    scheduler(store, file).look(MONDAY + SOON_S)
    assert [each[:2] for each in queued(store)] == [("chat", "chain"), ("hook", "chain")]
    assert runs(store)[-1][1] is None

    mailbox.answers = {}
    scheduler(store, file).look(MONDAY + SOON_S)
    assert (len(queued(store)), len(mailbox.mails)) == (2, 1)
    assert runs(store)[-1] == (MONDAY, "sent", 2, None)


def test_a_receiver_that_the_alerter_gets_later_has_the_report_then(store: Store, mailbox: Mailbox) -> None:
    know_receivers(store, chat="slack")
    file = reports(mailbox, to=[], receivers=["chat", "hook"])
    scheduler(store, file).look(MONDAY + SOON_S)
    assert runs(store)[-1][3] == "receiver hook: the active alerter has no receiver of this name"
    know_receivers(store, hook="webhook")
    scheduler(store, file).look(MONDAY + SOON_S)
    assert [each[0] for each in queued(store)] == ["chat", "hook"]
    assert runs(store)[-1][1] == "sent"
    assert mailbox.mails == []


def test_a_receiver_that_only_pages_fails_the_run_and_the_others_have_it(store: Store, mailbox: Mailbox) -> None:
    know_receivers(store, chat="slack", pager="pagerduty")
    scheduler(store, reports(mailbox, receivers=["chat", "pager"])).look(MONDAY + SOON_S)
    assert [each[0] for each in queued(store)] == ["chat"]
    assert len(mailbox.mails) == 1
    error = "receiver pager is of kind pagerduty; reports can go to slack, webhook, apprise"
    assert runs(store)[-1] == (MONDAY, "failed", 1, error)


def test_one_whose_claim_has_run_out_queues_nothing(store: Store, mailbox: Mailbox) -> None:
    know_receivers(store, chat="slack")
    file = reports(mailbox, to=[], receivers=["chat"])

    def is_overtaken(*arguments: Any) -> ReportPart:
        change(store, "UPDATE report_run SET next_attempt_at = clock_timestamp() WHERE done_at IS NULL")
        scheduler(store, file).look(MONDAY + SOON_S)
        return part(*arguments)

    scheduler(store, file, is_overtaken).look(MONDAY + SOON_S)
    assert len(queued(store)) == 1


def test_after_a_failure_it_is_put_off(store: Store, mailbox: Mailbox) -> None:
    mailbox.answers = {"DATA": "452 full"}
    weekly = scheduler(store, reports(mailbox), first_retry_s=600.0)
    weekly.look(MONDAY + SOON_S)
    weekly.look(MONDAY + SOON_S + 60)
    assert runs(store)[-1][2] == 1
    with store.engine.connect() as connection:
        wait_s = connection.execute(
            text("SELECT extract(epoch FROM max(next_attempt_at) - clock_timestamp())::float8 FROM report_run")
        ).scalar_one()
    assert backoff_s(1, 0.0, 600.0) - 60 < wait_s <= backoff_s(1, 1.0, 600.0, 3_600.0)


def test_a_refusal_for_good_is_kept_with_its_error(store: Store, mailbox: Mailbox) -> None:
    mailbox.answers = {ADA: "550 5.1.1 no such user"}
    weekly = scheduler(store, reports(mailbox))
    weekly.look(MONDAY + SOON_S)
    weekly.look(MONDAY + SOON_S)
    error = f"the mail server rejected 1 of 1 recipients: {ADA}: 550 5.1.1 no such user"
    assert runs(store)[-1] == (MONDAY, "failed", 1, error)


def test_what_is_put_off_for_a_day_is_given_up(store: Store, mailbox: Mailbox) -> None:
    mailbox.answers = {ADA: "450 not now"}
    weekly = scheduler(store, reports(mailbox))
    weekly.look(MONDAY + SOON_S)
    change(store, f"UPDATE report_run SET created_at = created_at - make_interval(secs => {GIVE_UP_AFTER_S + 60})")
    weekly.look(MONDAY + SOON_S)
    _, outcome, attempts, error = runs(store)[-1]
    assert (outcome, attempts) == ("failed", 2)
    assert error is not None
    assert error.startswith("gave up after 2 attempts in a day; last error: the mail server rejected 1 of 1 recipients")


def test_a_dashboard_that_dies_between_claim_and_mail_leaves_it_to_the_next(store: Store, mailbox: Mailbox) -> None:
    def dies(*_arguments: object) -> ReportPart:
        raise SystemExit

    with pytest.raises(SystemExit):
        scheduler(store, reports(mailbox), dies).look(MONDAY + SOON_S)
    successor = scheduler(store, reports(mailbox))
    successor.look(MONDAY + SOON_S)
    assert mailbox.mails == []  # for all it knows, the other is still at it
    change(store, "UPDATE report_run SET next_attempt_at = clock_timestamp() WHERE done_at IS NULL")
    successor.look(MONDAY + SOON_S)
    assert len(mailbox.mails) == 1
    assert runs(store)[-1] == (MONDAY, "sent", 2, None)


def test_one_whose_claim_has_run_out_mails_nothing(store: Store, mailbox: Mailbox) -> None:
    def is_overtaken(*arguments: Any) -> ReportPart:
        change(store, "UPDATE report_run SET next_attempt_at = clock_timestamp() WHERE done_at IS NULL")
        scheduler(store, reports(mailbox)).look(MONDAY + SOON_S)
        return part(*arguments)

    scheduler(store, reports(mailbox), is_overtaken).look(MONDAY + SOON_S)
    assert len(mailbox.mails) == 1
    assert runs(store)[-1] == (MONDAY, "sent", 2, None)


def test_of_several_times_that_went_by_the_last_is_mailed(store: Store, mailbox: Mailbox) -> None:
    scheduler(store, reports(mailbox))
    scheduler(store, reports(mailbox)).look(MONDAY + 3 * WEEK_S + 86_400)
    ((_, mail),) = mailbox.mails
    assert "2026-W49" in mail["Subject"]
    assert [(due, outcome) for due, outcome, _, _ in runs(store)] == [
        (MONDAY - WEEK_S, "skipped"), (MONDAY + 3 * WEEK_S, "sent"),
    ]  # fmt: skip


def test_a_clock_that_is_behind_begins_nothing(store: Store, mailbox: Mailbox) -> None:
    scheduler(store, reports(mailbox)).look(MONDAY + 2 * WEEK_S + 86_400)
    scheduler(store, reports(mailbox)).look(MONDAY + WEEK_S + 86_400)
    assert len(mailbox.mails) == 1


def test_one_that_is_still_put_off_when_the_next_is_due_is_given_up(store: Store, mailbox: Mailbox) -> None:
    mailbox.answers = {ADA: "450 not now"}
    weekly = scheduler(store, reports(mailbox))
    weekly.look(MONDAY + SOON_S)
    mailbox.answers = {}
    weekly.look(MONDAY + WEEK_S + SOON_S)
    assert len(mailbox.mails) == 1
    (first, second) = runs(store)[-2:]
    assert first[:2] == (MONDAY, "failed")
    assert first[3] is not None
    assert first[3].startswith(
        "not sent before the next one was due; the last: the mail server rejected 1 of 1 recipients"
    )
    assert second[:2] == (MONDAY + WEEK_S, "sent")


def test_it_waits_for_the_windows_of_its_range(store: Store, mailbox: Mailbox) -> None:
    midnight = MONDAY - 8 * 3_600
    emits(store)
    weekly = scheduler(store, reports(mailbox))
    for start in (midnight - 120, midnight - 60):
        weekly.look(MONDAY + SOON_S)
        assert mailbox.mails == []
        with store.engine.begin() as connection:
            store_window(connection, document(chain(), start), start)
    weekly.look(MONDAY + SOON_S)
    ((_, mail),) = mailbox.mails
    assert "closed yet" not in told(mail)


def test_it_waits_for_the_grace_of_windows_that_end_when_it_is_due(store: Store, mailbox: Mailbox) -> None:
    weekly = scheduler(store, reports(mailbox, range="-24h"))
    weekly.look(MONDAY + 60)
    assert mailbox.mails == []
    weekly.look(MONDAY + SOON_S)
    assert len(mailbox.mails) == 1


def test_after_some_hours_it_says_that_windows_are_not_closed(store: Store, mailbox: Mailbox) -> None:
    emits(store)
    weekly = scheduler(store, reports(mailbox))
    weekly.look(MONDAY + SOON_S)
    assert mailbox.mails == []
    change(store, f"UPDATE report_run SET created_at = created_at - make_interval(secs => {WAIT_AT_MOST_S})")
    weekly.look(MONDAY + SOON_S)
    ((_, mail),) = mailbox.mails
    assert "Not all windows of this range are closed yet for chain." in told(mail)


def test_a_pipeline_that_is_gone_is_told_beside_the_others(store: Store, mailbox: Mailbox) -> None:
    scheduler(store, reports(mailbox, pipelines=["gone", "chain"]), make=None).look(MONDAY + SOON_S)
    ((_, mail),) = mailbox.mails
    assert "gone: no report\nNo pipeline is named gone" in told(mail)
    assert len(list(mail.iter_attachments())) == 1


def test_a_mistake_in_making_it_is_tried_again(store: Store, mailbox: Mailbox) -> None:
    def fails(*_arguments: object) -> ReportPart:
        raise RuntimeError

    scheduler(store, reports(mailbox), fails).look(MONDAY + SOON_S)
    assert runs(store)[-1] == (MONDAY, None, 1, "the report could not be created (RuntimeError)")
    scheduler(store, reports(mailbox)).look(MONDAY + SOON_S)
    assert len(mailbox.mails) == 1


def test_a_running_scheduler_mails_by_itself_and_lets_go_of_a_run_when_it_is_stopped(
    store: Store, mailbox: Mailbox
) -> None:
    making, go_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> ReportPart:
        making.set()
        go_on.wait(30)
        return part(*arguments)

    store.apply(chain().model_copy(update={"metadata": chain().metadata.model_copy(update={"name": "other"})}), 0)
    daily = reports(mailbox, rrule="FREQ=DAILY", range="last-week", zone="UTC")
    scheduler(store, daily)
    change(store, "UPDATE report_run SET due_at = due_at - interval '1 day'")
    running = Scheduler(store, Settings(), daily, slow)
    running.start()
    assert making.wait(30)
    stopping = threading.Thread(target=running.stop, args=(30.0,))
    stopping.start()
    wait_for(lambda: running._stopping.is_set(), timeout_s=10, what="being told to stop")
    go_on.set()
    stopping.join(30)
    assert mailbox.mails == []

    successor = Scheduler(store, Settings(), daily, part)
    successor.start()
    wait_for(lambda: bool(mailbox.mails), timeout_s=10, what="the mail")
    successor.stop()
    assert runs(store)[-1][1] == "sent"


def test_runs_go_when_they_are_older_than_what_reports_are_made_of_but_the_newest_of_a_schedule_stays(
    store: Store, mailbox: Mailbox
) -> None:
    weekly = scheduler(store, reports(mailbox))
    weekly.look(MONDAY + SOON_S)
    scheduler(store, reports(mailbox, zone="UTC"))
    kept_days = Settings().keep_rollups_days
    change(
        store,
        f"UPDATE report_run SET due_at = clock_timestamp() - make_interval(days => {kept_days}) "
        f"- (to_timestamp({MONDAY}) - due_at)",
    )
    assert len(runs(store)) == 3
    assert Runs(store.engine).forget(kept_days + 365) == 0
    weekly.look(MONDAY + SOON_S + FORGETS_EVERY_S)
    assert len(runs(store)) == 2
    assert runs(store)[-1][:2] == (MONDAY, "sent")


def emits(store: Store) -> None:
    """The pipeline has an emitter, so that its windows are waited for."""
    now_ms = int(time.time() * 1_000)
    with store.engine.begin() as connection:
        connection.execute(
            tables.table_of(tables.EmitterRow).insert().values(
                pipeline="chain", emitter=b"0" * 16, node="src", host="h", seq=1, started_at=0, sent_at=now_ms,
                closed=False, final_through=0, appended_at=now_ms,
            )
        )  # fmt: skip


def told(mail: Any) -> str:
    return str(mail.get_body(("plain",)).get_content()).replace("\r\n", "\n")
