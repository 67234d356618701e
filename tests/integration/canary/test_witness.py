"""The witness against windows that a real closer made of beacons on a real log: an hour ago by the stage's clock."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession
from sqlalchemy import Engine, delete, func, insert, select, update
from sqlalchemy.exc import OperationalError
from typer.testing import CliRunner

from canary import record, witness
from canary.metrics import CanaryMetrics
from canary.owner import SURE_S, CanaryOwner
from canary.plan import MINUTE_S, MinutePlan, plan_of
from canary.sender import boot_s
from canary.witness import Notice, Result
from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.errors import EXIT_BREACHED, EXIT_OK
from lagloss_server.cli.main import app
from lagloss_server.model.canary import CANARY, DUE_S, GRACE_S, NOT_DUE, NOT_TAKEN, alerting_rule
from lagloss_server.model.canary_definition import canary_definition
from lagloss_server.queries.canary import MANY, NOT_RUN, read_not_taken, read_quiet_s, read_standing, read_totals
from lagloss_server.store.ownership import CANARY_WORK, Lease, OwnerSession
from lagloss_server.store.schema import core as tables
from lagloss_server.store.schema.alerting import IncidentRow
from lagloss_server.store.store import Store
from tests.support.canary_past import SECRET, alerted, in_the_past
from tests.support.closers import driven, wait_until
from tests.support.stages import BLOCK_PARTITIONS, SETTLED_MS, TimedOutlet
from tests.support.worlds_in_kafka import make_topics

MINUTES = 3


@pytest.fixture(scope="module")
def plans() -> list[MinutePlan]:
    """Minutes of half an hour ago."""
    start_s = int(time.time()) // MINUTE_S * MINUTE_S - 1_800
    return [plan_of(SECRET, start_s + number * MINUTE_S) for number in range(MINUTES)]


@pytest.fixture(scope="module")
def closed(
    spark: SparkSession, kafka_bootstrap: str, module_database_url: str, plans: list[MinutePlan]
) -> Iterator[Store]:
    """A store with these minutes closed."""
    store = Store(module_database_url)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aggregator.reports.feed.BATCH_S", 0.1)
        store.change([canary_definition()], now_ms=0, is_own=True)
        beacons, reports = make_topics(kafka_bootstrap, "beacons", "reports", partitions=BLOCK_PARTITIONS)
        topics = {BEACONS: beacons, REPORTS: reports}
        with (
            driven(spark, kafka_bootstrap, store, beacons, reports) as parts,
            in_the_past(plans[0].start_s, lambda clock: TimedOutlet(kafka_bootstrap, topics, clock)) as past,
        ):
            for plan in plans:
                past.play(plan)
            past.pass_to(past.clock.now_ms + (GRACE_S + 10) * 1_000)
            parts.follow_all()
            now_ms = past.clock.now_ms + SETTLED_MS
            while parts.closer.tick(now_ms, now_ms):
                pass
        yield store
    store.close()


def results(engine: Engine, plans: list[MinutePlan]) -> dict[int, Result]:
    with engine.connect() as connection:
        return witness.read_results(connection, [plan.start_s for plan in plans])


def test_what_the_rules_say_of_the_canary_is_right_to_the_message(closed: Store, plans: list[MinutePlan]) -> None:
    found = results(closed.engine, plans)

    assert {start_s: alerted(plan_of(SECRET, start_s), result).problems for start_s, result in found.items()} == {
        plan.start_s: () for plan in plans
    }
    with closed.engine.connect() as connection:
        assert witness.read_revisions(connection, plans[0].start_s).keys() == found.keys()


def test_a_plan_by_another_secret_is_wrong(closed: Store, plans: list[MinutePlan]) -> None:
    (first, *_) = plans
    judgement = alerted(plan_of(b"t" * 32, first.start_s), results(closed.engine, plans)[first.start_s])

    assert (judgement.named, judgement.invented) == (0, len(first.lost))


def test_the_record_of_minutes_gives_the_standing(
    closed: Store, plans: list[MinutePlan], module_database_url: str
) -> None:
    def shown(exit_code: int) -> dict[str, Any]:
        """What `lagloss canary --json` prints; it ends with this code, as without `--json`."""
        env = {"LAGLOSS_DATABASE_URL": module_database_url}
        plain, done = (CliRunner().invoke(app, ["canary", *options], env=env) for options in ([], ["--json"]))
        assert plain.exit_code == done.exit_code == exit_code, plain.output
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    found = results(closed.engine, plans)
    with closed.engine.begin() as connection:
        standing = read_standing(connection)
        assert standing is not None
        assert (standing.is_young, standing.why) == (False, NOT_RUN.why)
        for plan in plans:
            assert record.begin(connection, plan.start_s, len(plan.lost))
            assert not record.begin(connection, plan.start_s, len(plan.lost)), "a minute is sent once"
        record.confirm(connection, plans[0].start_s)
        record.excuse(connection, [plans[1].start_s], "the clock was set by +3600 s")
        record.excuse_unfinished(connection, plans[0].start_s)
        due = record.read_due(connection, 0, SURE_S)
    assert [row.minute for row in due] == [plans[0].start_s]
    assert shown(EXIT_BREACHED)["why"] == "0 of 3 minutes were due so far: the process that sent it ended"

    with closed.engine.begin() as connection:
        for plan in plans:
            connection.execute(update(record._minute).values(state="sent", why=""))
            result = found[plan.start_s]
            verdict = record.note_judgement(
                connection, plan.start_s, None, alerted(plan, result), result.revision, on_time=True
            )
            assert verdict == "right"
        record.note_notice(connection, plans[0].start_s, Notice("loss", 60, 3, ("a",)))
        record.note_notice(connection, plans[0].start_s, Notice("lag", 1, None, ()))
        connection.execute(
            update(record._minute).where(record._minute.c.minute == plans[0].start_s).values(state=NOT_DUE)
        )
        notices = record.read_notices(connection, 0)
        connection.execute(update(record._minute).values(state="sent"))
    assert notices == {plans[0].start_s: Notice("loss", 60, 3, ("a",))}, "the first counts, also of what is not due"
    lost = sum(len(plan.lost) for plan in plans)
    document = shown(EXIT_OK)
    assert (document["minutes"], document["shown"], document["named"], document["invented"]) == (3, lost, lost, 0)
    assert (document["ok"], document["why"]) == (True, "")

    with closed.engine.begin() as connection:
        wrong = witness.judge(plans[2], None, [], {})
        assert record.note_judgement(connection, plans[2].start_s, "right", wrong, None, on_time=False) == "wrong"
    assert shown(EXIT_BREACHED)["why"] == "a minute was wrong: no result"
    with closed.engine.begin() as connection:
        right = alerted(plans[2], found[plans[2].start_s])
        assert record.note_judgement(connection, plans[2].start_s, "wrong", right, 1, on_time=True) == "late"
        totals = read_totals(connection, plans[0].start_s, plans[-1].start_s + MINUTE_S)
        assert (totals.minutes, totals.right, totals.shown, totals.named) == (3, 3, lost, lost)
        record.prune(connection, plans[1].start_s)
        assert connection.execute(select(record._minute.c.minute)).scalars().all() == [
            plans[1].start_s,
            plans[2].start_s,
        ]


def test_a_name_that_is_taken_away_or_added_is_noticed(closed: Store, plans: list[MinutePlan]) -> None:
    plan, row = plans[0], tables.table_of(tables.MissingMessageRow)
    victim = next(iter(plan.lost))
    with closed.engine.connect() as connection, connection.begin() as transaction:
        connection.execute(delete(row).where(row.c.message_id == victim))
        spoilt = witness.read_results(connection, [plan.start_s])[plan.start_s]
        transaction.rollback()
    judgement = alerted(plan, spoilt)
    assert (judgement.shown - judgement.named, judgement.invented) == (1, 0)
    assert victim in judgement.problems[0]


def _alert(engine: Engine, plan: MinutePlan) -> None:
    """Store the incident and the notification of a minute."""
    rule = alerting_rule(plan.breaching_place)
    opened_at = datetime.fromtimestamp(plan.start_s, UTC)
    with engine.begin() as connection:
        connection.execute(
            insert(IncidentRow).values(
                id=uuid4(),
                pipeline=CANARY,
                rule=rule,
                kind="loss",
                severity="warning",
                state="resolved",
                opened_at=opened_at,
                resolved_at=opened_at,
                first_window=plan.start_s,
                last_window=plan.start_s,
                value=0.1,
                worst=0.1,
                target=0.04,
                detail={"breaches": [[plan.start_s, plan.start_s]]},
            )
        )
        record.note_notice(connection, plan.start_s, Notice(rule, len(plan.messages), len(plan.lost), ()))


@pytest.fixture
def lease(module_database_url: str) -> Iterator[Lease]:
    with closing(OwnerSession(module_database_url, 15.0)) as session:
        lease = Lease(CANARY_WORK, session)
        wait_until(lease.acquire, what="for the owner before to end")
        yield lease


def test_the_owner_judges_a_minute_once_it_is_right_or_due_and_again_when_its_result_changes(
    closed: Store, plans: list[MinutePlan], lease: Lease
) -> None:
    engine, minute = closed.engine, record._minute

    def verdicts() -> list[str | None]:
        with engine.connect() as connection:
            return list(connection.execute(select(minute.c.verdict).order_by(minute.c.minute)).scalars())

    with engine.begin() as connection:
        record.prune(connection, 1 << 40)
        for plan in plans:
            record.begin(connection, plan.start_s, len(plan.lost))
            record.confirm(connection, plan.start_s)
    owner = CanaryOwner(engine, SECRET, CanaryMetrics(), lease)
    for plan in plans:
        owner._began_s[plan.start_s] = boot_s()

    assert owner.judge() is None, "nothing can be said yet"
    assert verdicts() == [None] * MINUTES
    for plan in plans[:2]:
        _alert(engine, plan)
    assert owner.judge() is None
    assert verdicts() == ["right", "right", None]
    _alert(engine, plans[2])
    assert owner.judge() == ""
    assert verdicts() == ["right"] * MINUTES

    row, window = tables.table_of(tables.MissingMessageRow), tables.table_of(tables.WindowRow)
    with engine.begin() as connection:
        connection.execute(delete(row).where(row.c.message_id == next(iter(plans[1].lost))))
        connection.execute(update(window).where(window.c.window_start == plans[1].start_s).values(revision=99))
    problem = owner.judge()
    assert problem is not None
    assert problem.startswith("a minute was wrong: 1 of")
    assert verdicts() == ["right", "wrong", "right"]


def test_a_minute_without_a_result_is_wrong_when_it_is_due(closed: Store, lease: Lease) -> None:
    engine, start_s = closed.engine, int(time.time()) // MINUTE_S * MINUTE_S - 5 * MINUTE_S
    with engine.begin() as connection:
        record.prune(connection, 1 << 40)
        record.begin(connection, start_s, 4)
        record.confirm(connection, start_s)
    owner = CanaryOwner(engine, SECRET, CanaryMetrics(), lease)
    assert owner.judge() is None
    owner._began_s[start_s] = boot_s() - DUE_S - 1

    assert owner.judge() == "a minute was wrong: no result"

    with engine.begin() as connection:
        record.begin(connection, start_s + MINUTE_S, 4)
        record.confirm(connection, start_s + MINUTE_S)
    owner._began_s[start_s + MINUTE_S] = boot_s()
    owner.clock_was_set(3_600.0)
    with engine.connect() as connection:
        rows = connection.execute(select(record._minute).order_by(record._minute.c.minute)).all()
    assert [(row.state, row.verdict) for row in rows] == [("sent", "wrong"), ("not due", None)], (
        "no result excuses itself"
    )


def test_a_paused_owner_judges_nothing_of_its_successors_minutes(
    closed: Store, plans: list[MinutePlan], lease: Lease, module_database_url: str
) -> None:
    minute = record._minute
    with closed.engine.begin() as connection:
        record.prune(connection, 1 << 40)
        record.begin(connection, plans[0].start_s, len(plans[0].lost))
        record.confirm(connection, plans[0].start_s)
    owner = CanaryOwner(closed.engine, SECRET, CanaryMetrics(), lease)
    owner._began_s[plans[0].start_s] = boot_s() - DUE_S - 1
    lease.session.close()
    with closing(OwnerSession(module_database_url, 15.0)) as successor:
        wait_until(Lease(CANARY_WORK, successor).acquire, what="for a successor")
        with pytest.raises(OperationalError):
            owner.judge()
    with closed.engine.begin() as connection:
        assert connection.execute(select(minute.c.verdict)).scalars().all() == [None]
        record.excuse(connection, [plans[0].start_s], "the process that sent it ended")
        judgement = witness.judge(plans[0], None, [], {})
        record.note_judgement(connection, plans[0].start_s, None, judgement, None, on_time=False)
        assert connection.execute(select(minute.c.state, minute.c.verdict)).all() == [(NOT_DUE, None)]


def test_what_is_judged_and_what_is_newest_does_not_depend_on_clocks_that_were_wrong(
    closed: Store, plans: list[MinutePlan]
) -> None:
    minute, now_s = record._minute, int(time.time()) // MINUTE_S * MINUTE_S
    old_s, ahead_s = now_s - 7_200, now_s + 3_600
    with closed.engine.begin() as connection:
        record.prune(connection, 1 << 40)
        for start_s in (old_s - 86_400, old_s, now_s, ahead_s):
            record.begin(connection, start_s, 4)
            record.confirm(connection, start_s)
        record.excuse_unfinished(connection, now_s - 86_400)
        due = [row.minute for row in record.read_due(connection, now_s - 86_400, SURE_S)]
        assert due == [old_s, now_s, ahead_s], "not judged for long, but for less than a day"
        wrong = witness.judge(plans[0], None, [], {})
        for start_s in (old_s, ahead_s):
            record.note_judgement(connection, start_s, None, wrong, None, on_time=False)
        is_old = minute.c.minute == old_s
        connection.execute(update(minute).where(is_old).values(judged_at=func.now() - timedelta(seconds=SURE_S + 1)))
        assert [row.minute for row in record.read_due(connection, now_s - 86_400, SURE_S)] == [now_s, ahead_s]
    with closed.engine.begin() as connection:
        standing = read_standing(connection)
        assert standing is not None
        assert standing.totals.minutes == 1, "one that has not begun yet is none of the newest"
        connection.execute(update(minute).values(verdict="right", judged_at=func.now() + timedelta(seconds=600)))
        quiet_s = read_quiet_s(connection)
        assert quiet_s is not None
        assert -600 <= quiet_s <= -500
        for number in range(MANY):
            record.begin(connection, now_s - (number + 1) * MINUTE_S, 4)
            record.excuse(connection, [now_s - (number + 1) * MINUTE_S], f"{NOT_TAKEN}topic x: {number}")
        assert read_not_taken(connection) == [f"{NOT_TAKEN}topic x: {number}" for number in range(MANY)]
