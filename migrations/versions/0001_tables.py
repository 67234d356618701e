"""the tables of version 1.0.0

Each table's indexes follow it. Columns that are `key=True` make its primary key; all but those that are `null=True`
always hold a value.
"""

from functools import partial
from typing import Any, Final

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None

BY_DAY: Final = {"postgresql_partition_by": "RANGE (window_start)"}
"""Partitions are days, made by the tables' writers."""
REPLACED_OFTEN: Final = {"postgresql_with": {"fillfactor": 45}}
NOW: Final = sa.text("now()")
CLOCK: Final = sa.text("clock_timestamp()")


def _column(
    kind: sa.types.TypeEngine[Any],
    name: str,
    comment: str | None = None,
    *,
    key: bool = False,
    null: bool = False,
    default: Any = None,
) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=key, nullable=null, server_default=default, comment=comment)


text = partial(_column, sa.Text())
bigint = partial(_column, sa.BigInteger())
integer = partial(_column, sa.Integer())
double = partial(_column, sa.Double())
boolean = partial(_column, sa.Boolean())
binary = partial(_column, sa.LargeBinary())
jsonb = partial(_column, JSONB())
moment = partial(_column, sa.DateTime(timezone=True))
uuid = partial(_column, sa.Uuid())


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), sa.Identity(), primary_key=True)


def _keep_packed(table: str, *columns: str) -> None:
    """Store the columns as they are: their values are compressed already."""
    for column in columns:
        op.execute(f'ALTER TABLE "{table}" ALTER COLUMN {column} SET STORAGE EXTERNAL')


AUDIT_TRAIL_IS_KEPT: Final = """
CREATE FUNCTION audit_trail_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' THEN
    IF OLD.at < clock_timestamp() - interval '30 days' THEN
      RETURN OLD;
    END IF;
  END IF;
  RAISE EXCEPTION 'rows of audit_trail are never changed, and deleted after 30 days at the soonest'
    USING ERRCODE = 'insufficient_privilege';
END
$$
"""
"""Holds for every role, the tables' owner included."""


def upgrade() -> None:
    _definitions()
    _reports()
    _windows()
    _rollups()
    _bad_records()
    _consumer_groups()
    _incidents()
    _dashboard()
    _audit_trail()
    _runs()
    _taps()
    _repairs()
    _canary()


def downgrade() -> None:
    op.execute(
        "DROP TABLE pipeline, token, reports_position, deferred_reports, emitter, progress, tally, stranger, "
        '"window", window_history, missing_message, picked_messages, audited, recompute_request, set_aside, '
        "rollup, rollup_dirty, pruned, quarantine, quarantine_count, consumer_lag, consumer_group, cluster_group, "
        "cluster_topics, incident, incident_change, outbox, pending_breach, judged_windows, silence, receiver, lease, "
        "login_user, login_session, report_run, audit_trail, dag_run, task_try, tap, tap_tally, tap_unreadable, "
        "remembered_rows, lost_afterwards, lost_afterwards_message, repair_message, repair, canary_secret, "
        "canary_minute"
    )
    op.execute("DROP FUNCTION audit_trail_is_kept")


def _definitions() -> None:
    op.create_table(
        "pipeline",
        text("name", key=True),
        integer("version", key=True),
        bigint("applied_at", "epoch ms: in force for windows that start at or after it"),
        jsonb("definition"),
        bigint("deleted_at", "epoch ms; set in the newest version: it is deleted", null=True),
        comment="Versions of definitions. Writers: lagloss apply, collector.",
    )
    op.create_table(
        "token",
        text("id", "public part of the token", key=True),
        text("pipeline"),
        text("scope", "intake, or admin: also the definition"),
        bigint("rate", "beacons per second; null: no limit", null=True),
        binary("secret_hash", "SHA-256 of the secret's text"),
        bigint("created_at", "epoch ms"),
        bigint("revoked_at", "epoch ms", null=True),
        comment="Tokens of the collector's clients. Writer: lagloss token.",
    )


def _reports() -> None:
    op.create_table(
        "reports_position",
        integer("topic_partition", key=True),
        bigint("next_offset"),
        text("topic_id"),
        integer("leader_epoch", "of the last report before it; -1: unknown", default="-1"),
        bigint("appended_at", "epoch ms: of the last report before it", default="0"),
        bigint("whole_from", "epoch ms: the log lost reports that were appended before", default="0"),
        comment="Next offset to consume of each partition of the reports topic. Writer: follower.",
    )
    op.create_table(
        "deferred_reports",
        text("pipeline", key=True),
        integer("topic_partition", key=True),
        bigint("next_offset", "of the first report that is not consumed yet"),
        comment="Deferred reports of a pipeline, up to reports_position. Writer: follower.",
    )
    op.create_table(
        "emitter",
        text("pipeline", key=True),
        binary("emitter", key=True),
        text("node"),
        text("host"),
        bigint("seq"),
        bigint("started_at", "epoch ms"),
        bigint("sent_at", "epoch ms on the emitter's clock"),
        boolean("closed"),
        bigint("final_through", "epoch s"),
        bigint("appended_at", "epoch ms: append time of the last report"),
        bigint("skew_ms", "smallest append time - sent_at in its last minute of reports", default="0"),
        jsonb("skew", "Skew: {smallest, set_back: [[minute, ms], ...]}", default="{}"),
        boolean("resumes", "it observes again the messages that were in flight", default="false"),
        boolean("unfinished", "it closed with messages in flight", default="false"),
        jsonb("inputs", "lanes of its node's input that it reported", default="[]"),
        jsonb("labels", "of its deployment", default="{}"),
        comment="The newest report of each emitter. Writer: follower.",
        **REPLACED_OFTEN,
    )
    op.create_table(
        "progress",
        text("pipeline", key=True),
        text("checkpoint", key=True),
        text("lane", key=True),
        binary("holder", "emitter of messages in flight; empty for ordered inputs", key=True),
        bigint("until", "epoch ms"),
        binary("reporter", "emitter that reported it", default=""),
        bigint("appended_at", "position in the reports log: append time, partition, offset"),
        integer("topic_partition"),
        bigint("topic_offset"),
        comment="The newest progress of each lane. Writer: follower.",
        **REPLACED_OFTEN,
    )
    op.create_table(
        "tally",
        text("pipeline", key=True),
        bigint("window_start", "epoch s", key=True),
        binary("emitter", key=True),
        text("checkpoint", key=True),
        text("replay", "empty for live traffic", key=True),
        text("node"),
        bigint("seq", "of the report it came with"),
        bigint("sample"),
        bigint("beacons"),
        bigint("payload_bytes"),
        bigint("id_sum"),
        bigint("dropped"),
        binary("sketch", "bins as in a tally's lag_sketch on the wire"),
        integer("lowest_bin", "key of the first bin; null: there are no lags", null=True),
        binary("ranges", "as in a tally's ranges on the wire"),
        bigint("changed_at", "epoch ms: append time of the report that last changed it"),
        bigint("changed_basis", "basis of the reports in which it last changed"),
        comment="The newest tally of each emitter, checkpoint, window and replay. Writer: follower.",
        **BY_DAY,
    )
    op.create_index("tally_changed", "tally", ["changed_basis"])
    op.create_table(
        "stranger",
        text("kind", "pipeline, checkpoint, replay or lane", key=True),
        text("pipeline", key=True),
        text("checkpoint", "of a checkpoint or lane, else empty", key=True),
        text("name", "of a replay or lane, else empty", key=True),
        binary("emitter", "who named it first"),
        bigint("since", "epoch ms: append time of the report that named it first"),
        comment="Undeclared names in reports, stored up to a limit. Writer: follower.",
    )


def _windows() -> None:
    op.create_table(
        "window",
        text("pipeline", key=True),
        bigint("window_start", "epoch s", key=True),
        text("state", "closed or sealed"),
        integer("revision"),
        text("verdict"),
        bigint("messages"),
        bigint("delivered"),
        bigint("pending"),
        bigint("lost_min"),
        bigint("lost_max"),
        bigint("on_time", "of these, delivered within the lag target", default="0"),
        bigint("on_time_of", "messages - filtered - dead; 0 if unknown", default="0"),
        double("e2e_p95_ms", null=True),
        boolean("history", "all its emitters started after its end: a back-fill"),
        bigint("closed_at", "epoch ms of this revision"),
        bigint("judged_at", "epoch ms: latest time at which the result was confirmed"),
        bigint("basis", "position in the reports that the result is based on"),
        bigint("deadline", "epoch ms: when to evaluate again; null if nothing can change", null=True),
        jsonb("log_start", "[[partition, lowest offset its blocks need], ...]"),
        binary("document", "the result as windows --json prints it, packed"),
        double("stale_ms", "largest staleness of a checkpoint; null: unknown", null=True),
        binary("facts", "WindowFacts, packed"),
        comment="The newest result of each closed window. Writer: closer. Result columns: see Window.",
        **BY_DAY,
    )
    op.create_index(
        "window_deadline", "window", ["pipeline", "deadline"], postgresql_where=sa.text("deadline IS NOT NULL")
    )
    op.create_index("window_unsealed", "window", ["window_start"], postgresql_where=sa.text("state = 'closed'"))
    _keep_packed("window", "document", "facts")
    op.create_table(
        "window_history",
        text("pipeline", key=True),
        bigint("window_start", "epoch s", key=True),
        integer("revision", key=True),
        bigint("closed_at", "epoch ms"),
        binary("document", "as in window"),
        comment="Earlier results of windows, 50 a window at most. Writer: closer.",
        **BY_DAY,
    )
    _keep_packed("window_history", "document")
    op.create_table(
        "missing_message",
        text("pipeline", key=True),
        bigint("window_start", "epoch s", key=True),
        bigint("id_hash", "xxh3_64 read as signed", key=True),
        text("message_id", "null if the name is unknown", null=True),
        text("pattern", "presence pattern, hex"),
        text("kind", "lost, perhaps, overdue or pending"),
        jsonb("places"),
        text("last_checkpoint"),
        double("last_seen_ms", "epoch ms, by what its beacons say"),
        double("seen_from_ms", "epoch ms; it was last seen then at the earliest"),
        double("seen_by_ms", "epoch ms; and then at the latest"),
        text("trace_id", "of W3C's traceparent, hex; null if unknown", null=True),
        text("span_id", "of W3C's traceparent, hex", null=True),
        binary("emitter", "of its beacon at last_checkpoint; null if unknown", null=True),
        comment="Missing messages of each window, 1,000 at most. Writer: closer.",
        **BY_DAY,
    )
    op.create_index("missing_message_hash", "missing_message", ["id_hash", "pipeline"])
    op.create_table(
        "picked_messages",
        text("pipeline", key=True),
        bigint("window_start", "epoch s", key=True),
        binary("packed", "PickedMessages"),
        comment="Individually examined messages of a window: the bad ones and some good ones. Writer: closer.",
        **BY_DAY,
    )
    op.create_index("picked_messages_newest", "picked_messages", ["window_start"])
    op.create_table(
        "audited",
        integer("topic_partition", key=True),
        bigint("next_offset"),
        text("topic_id"),
        comment="Next offset of the beacons topic whose key is to be checked. Writer: closer.",
    )
    op.create_table(
        "recompute_request",
        _number("id"),
        text("pipeline"),
        bigint("from_s"),
        bigint("to_s"),
        moment("requested_at", default=NOW),
        jsonb("progress", "progress of the closer", null=True),
        jsonb("answer", null=True),
        comment="Requests to recompute windows. Writers: lagloss recompute (request), closer (progress).",
    )
    op.create_table(
        "set_aside",
        text("kind", "window, rollup or group", key=True),
        text("pipeline", key=True),
        text("item", "the window's start, PERIOD/START, or the group", key=True),
        text("error", "the first line of it"),
        bigint("failed_at", "epoch ms, of the last try"),
        integer("tries"),
        comment="Work that failed for a reason that retrying does not fix. Writer: aggregator.",
    )


def _rollups() -> None:
    op.create_table(
        "rollup",
        text("pipeline", key=True),
        text("period", "hour or day", key=True),
        bigint("start", "epoch s, UTC", key=True),
        integer("windows", "minutes of it that are closed"),
        integer("ok_windows", "of windows, with this verdict", default="0"),
        integer("loss_windows", "of windows, with this verdict", default="0"),
        integer("unknown_windows", "of windows, with this verdict", default="0"),
        integer("idle_windows", "of windows, with this verdict", default="0"),
        bigint("messages"),
        bigint("delivered", default="0"),
        bigint("pending", default="0"),
        bigint("lost_min"),
        bigint("lost_max"),
        bigint("on_time", "as in window", default="0"),
        bigint("on_time_of", "as in window", default="0"),
        double("e2e_p95_ms", null=True),
        bigint("computed_at", "epoch ms: when these sums were computed"),
        binary("packed", "Rollup: all sums and sketches"),
        comment="Sums of the closed windows of each hour and day. Writer: closer (upkeep).",
    )
    op.create_index("rollup_start", "rollup", ["start"])
    op.create_table(
        "rollup_dirty",
        text("pipeline", key=True),
        text("period", key=True),
        bigint("start", "epoch s, UTC", key=True),
        bigint("dirty_since", "epoch ms: the first change that the roll-up does not include"),
        comment="Roll-ups to recompute, marked in the commit that changed them. Writer: closer.",
    )
    op.create_table(
        "pruned",
        text("table_name", key=True),
        bigint("before_s", "epoch s: rows of windows that start before it are deleted permanently"),
        comment="Retention limit of tables that are dropped by day; older windows are deleted. Writer: retention.",
    )


def _bad_records() -> None:
    op.create_table(
        "quarantine",
        text("topic", key=True),
        integer("topic_partition", key=True),
        bigint("topic_offset", key=True),
        text("reason"),
        binary("first_bytes"),
        moment("found_at", default=NOW),
        comment="Bad records of both topics, 1,000 a topic, reason and hour at most. Writer: aggregator.",
    )
    op.create_index("quarantine_found", "quarantine", ["topic", "reason", "found_at"])
    op.create_table(
        "quarantine_count",
        text("topic", key=True),
        text("reason", key=True),
        bigint("hour", "epoch s: the hour in which they were appended", key=True),
        text("bucket", "source whose counts are replaced together; empty: counts are added up", key=True),
        bigint("count"),
        comment="Number of bad records, whether or not stored in quarantine. Writer: aggregator.",
    )


def _consumer_groups() -> None:
    op.create_table(
        "consumer_lag",
        text("pipeline", key=True),
        bigint("window_start", "epoch s: the minute of the query", key=True),
        text("node", key=True),
        text("consumer_group", key=True),
        text("topic", key=True),
        integer("topic_partition", key=True),
        bigint("asked_at", "epoch ms: time of the newest query"),
        bigint("offsets", "log end - committed at that time; null: unknown", null=True),
        bigint("offsets_max", "highest in the minute", null=True),
        bigint(
            "behind_ms", "asked_at - time of the record at the committed offset; 0: no lag; null: unknown", null=True
        ),
        bigint("behind_max_ms", "highest in the minute", null=True),
        text("basis", "what behind_ms is by: event-time or timestamp; null: neither", null=True),
        bigint("in_flight", "of a queue: messages received and not deleted", null=True),
        bigint("in_flight_max", "highest in the minute", null=True),
        bigint("committed", "offset at asked_at; null: none, or a queue", null=True),
        bigint("log_start", "first offset of the log at asked_at; null: unknown", null=True),
        bigint("log_end", "offset after its last at asked_at; null: unknown", null=True),
        double("commits_per_s", "offsets per second, of 5 minutes; null: unknown", null=True),
        double("appends_per_s", "offsets per second, of 5 minutes; null: unknown", null=True),
        text("status", "ok, warning, stalled or stopped; null: unknown", null=True),
        text(
            "kept_by",
            "limit that deletes the first waiting record: time or size; none: no limit; null: unknown",
            null=True,
        ),
        bigint(
            "deletes_at",
            "epoch ms: earliest time at which the next record is deleted; null: no lag, or unknown limit",
            null=True,
        ),
        bigint(
            "loss_at",
            "epoch ms: earliest time at which a waiting record is deleted unread, at these rates; null: none",
            null=True,
        ),
        bigint("at_risk", "waiting offsets from that record on; null: none", null=True),
        bigint(
            "deleted",
            "offsets deleted in the minute before the group had committed past them; null: unknown",
            null=True,
        ),
        comment="How far consumer groups were behind, by minute of wall-clock time. Writer: consumer lag watch.",
        **BY_DAY,
    )
    op.create_table(
        "consumer_group",
        text("pipeline", key=True),
        text("node", key=True),
        text("consumer_group", key=True),
        bigint("asked_at", "epoch ms"),
        text("state", "as Kafka names it: Stable, Empty, Dead, ..."),
        bigint("since", "epoch ms: when this state was first observed"),
        integer("members", "consumers in it"),
        integer("assigned", "partitions assigned to its members in total"),
        text("protocol", "classic, or consumer: KIP-848"),
        comment="Consumer groups as their coordinators describe them. Writer: consumer lag watch.",
    )
    op.create_table(
        "cluster_group",
        text("cluster", "empty: that of lagloss's own topics", key=True),
        text("consumer_group", key=True),
        bigint("asked_at", "epoch ms"),
        jsonb("pipelines", "names of the pipelines whose definitions name it"),
        binary("document", "lagloss_server.groups.cluster_groups.ClusterGroup as JSON"),
        comment="Every consumer group of the clusters as it was read last. Writer: consumer lag watch.",
        **REPLACED_OFTEN,
    )
    op.create_table(
        "cluster_topics",
        text("cluster", "empty: that of lagloss's own topics", key=True),
        bigint("asked_at", "epoch ms"),
        binary("document", "their names, a list as JSON"),
        comment="The topics of each cluster as they were listed last. Writer: consumer lag watch.",
    )


def _incidents() -> None:
    op.create_table(
        "incident",
        uuid("id", key=True),
        text("pipeline"),
        text("rule", "name of the rule: loss, lag/node/mid, budget/loss/1h, ..."),
        text("kind", "kind of the rule, which names its runbook"),
        text("severity", "critical or warning"),
        text("state", "open or resolved"),
        moment("opened_at"),
        moment("resolved_at", null=True),
        moment("acknowledged_at", null=True),
        text("acknowledged_by", null=True),
        bigint("first_window", "epoch s"),
        bigint("last_window", "epoch s"),
        double("value", "of its last window, in the rule's unit"),
        double("worst"),
        double("target"),
        text(
            "withheld_kind",
            "why no receiver is notified: silence, maintenance, rule or upstream; null: receivers are notified",
            null=True,
        ),
        text(
            "withheld_ref",
            "the silence's id, or the name of the maintenance, the open rule, the blind pipeline",
            null=True,
        ),
        text("withheld_by", "author of the silence", null=True),
        text("withheld_reason", "of the silence or the maintenance", null=True),
        jsonb("detail", "breaches as ranges of windows, where, examples, notes"),
        comment="Incidents, one row each. Writers: alerting; lagloss alerts and dashboard acknowledge.",
    )
    op.create_index("incident_last_window", "incident", ["pipeline", "last_window"])
    op.create_index(
        "incident_open", "incident", ["pipeline", "rule"], unique=True, postgresql_where=sa.text("state = 'open'")
    )
    op.create_table(
        "incident_change",
        _number("id"),
        uuid("incident_id"),
        moment("at"),
        text("change", "opened, updated, raised, acknowledged, withheld, released, escalated, reopened or resolved"),
        text("by", "who did it; null: the alerter", null=True),
        text("note", null=True),
        double("value"),
        double("worst"),
        bigint("first_window", "epoch s"),
        bigint("last_window", "epoch s"),
        sa.ForeignKeyConstraint(["incident_id"], ["incident.id"]),
        comment="Changes of incidents, append-only. Writers: as incident.",
    )
    op.create_index("incident_change_of", "incident_change", ["incident_id", "id"])
    op.create_table(
        "outbox",
        _number("id"),
        uuid(
            "key",
            "by which receivers recognise a repetition; unlike id, never again that of another message",
            default=sa.text("gen_random_uuid()"),
        ),
        text("receiver"),
        uuid("incident_id", "null: a test or a report", null=True),
        text("action", "trigger, update, refresh, acknowledge, resolve, test or report"),
        text("change", "why: a change of the incident, reminder, refresh, fallback, test or report"),
        text("group_key", "notifications of one receiver with the same key can be sent together"),
        jsonb("body"),
        moment("created_at", default=CLOCK),
        integer("attempts", default="0"),
        moment("next_attempt_at", "while it is claimed: when the claim expires", default=CLOCK),
        uuid("claim", "id of the claim that can record the attempt; null: none is running", null=True),
        text("outcome", "sent, failed or dropped (out of date before it was sent)", null=True),
        moment("done_at", null=True),
        text("last_error", null=True),
        sa.ForeignKeyConstraint(["incident_id"], ["incident.id"]),
        comment="Notifications, committed together with their change. Writers: as incident.",
    )
    op.create_index("outbox_done", "outbox", ["done_at"])
    op.create_index(
        "outbox_due", "outbox", ["receiver", "next_attempt_at"], postgresql_where=sa.text("done_at IS NULL")
    )
    op.create_index("outbox_of_incident", "outbox", ["incident_id", "receiver", "id"])
    op.create_table(
        "pending_breach",
        text("pipeline", key=True),
        text("rule", key=True),
        text("kind"),
        text("severity"),
        integer("breaches", "windows that breach, of the last `of` closed ones"),
        integer("needed", "number of breaches that open an incident"),
        integer("of"),
        bigint("first_window", "the oldest that breaches, epoch s"),
        bigint("last_window", "the newest that breaches, epoch s"),
        text("text", "the newest value against the target, as text"),
        comment="Rules that breach in too few windows for an incident so far. Writer: alerting.",
    )
    op.create_table(
        "judged_windows",
        text("pipeline", key=True),
        integer("version", "version of the definition that they were evaluated with"),
        bigint("judged_to", "windows that start before this time; epoch s, full hour"),
        binary(
            "digests", "of each hour, five int64: hour, windows, sums of revision and closed_at, how many are history"
        ),
        jsonb("live", "newest window with live beacons (epoch s) before the windows that are read, by checkpoint"),
        comment="Windows that alerting has fully evaluated. Writer: alerting.",
    )
    op.create_table(
        "silence",
        text("id", key=True),
        jsonb("matchers", "texts such as pipeline=clicks, all of which must match"),
        text("reason"),
        text("author"),
        moment("starts_at"),
        moment("ends_at"),
        text("ended_by", "who ended it early; ends_at is when", null=True),
        comment="Silences: matching incidents send no notifications. Writers: lagloss alerts, dashboard.",
    )
    op.create_table(
        "receiver",
        text("name", key=True),
        text("kind"),
        boolean("is_fallback"),
        comment="Receivers that the leading alerter knows, without secrets. Writer: alerting.",
    )
    op.create_table(
        "lease",
        text("work", "aggregator, alerting or canary", key=True),
        text("owner", "session that does it while its name is locked: host, process, number"),
        moment("since"),
        moment("well_at", "last heartbeat of the owner, for people"),
        comment="Work that one process does at a time, and its owner. Writers: aggregator, alerting and canary.",
    )


def _dashboard() -> None:
    op.create_table(
        "login_user",
        text("name", "in lower case", key=True),
        text("role", "viewer or operator"),
        text("password_hash", "argon2id with its parameters and salt"),
        moment("created_at"),
        jsonb("groups", "names of groups, which teams refer to", default="[]"),
        comment="Users who log in with a password. Writers: lagloss users; dashboard rehashes passwords.",
    )
    op.create_table(
        "login_session",
        binary("token_hash", "SHA-256 of the cookie's token", key=True),
        text("login", "how they logged in: local or oidc"),
        text("name"),
        text("role", "viewer or operator"),
        moment("created_at", "when they logged in"),
        moment("seen_at", "their last request, to the minute"),
        jsonb("groups", "names of groups, which teams refer to", default="[]"),
        comment="Sessions of the dashboard. Writers: dashboard; lagloss users ends them.",
    )
    op.create_table(
        "report_run",
        text("report", "its name in the reports file", key=True),
        text("schedule", "rule and zone: a change restarts the schedule", key=True),
        moment("due_at", key=True),
        moment("created_at", default=CLOCK),
        integer("attempts", default="0"),
        moment("next_attempt_at", "while it is claimed: when the claim expires", default=CLOCK),
        uuid("claim", "id of the claim that can record the attempt; null: none is running", null=True),
        jsonb("reached", "addresses that received it, receivers that it is queued for", default="[]"),
        text("outcome", "sent, failed or skipped; null: not done yet", null=True),
        moment("done_at", null=True),
        text("last_error", null=True),
        comment="Scheduled reports, one row for each time one was due. Writer: dashboard (scheduler).",
    )


def _audit_trail() -> None:
    op.create_table(
        "audit_trail",
        _number("id"),
        moment("at", default=CLOCK),
        text("actor", "their name; of a client of the collector, the id of its token"),
        text("known_by", "how the actor was identified: local, oidc, proxy, token, machine, command, none"),
        text("address", "source of the request; of a command, the machine's name", null=True),
        text("action"),
        text("object", "object of the action; of a message, the hash of its id in hex"),
        jsonb("pipelines", "names of affected pipelines; empty: none in particular"),
        jsonb("detail"),
        comment="Audit trail of actions and views of message ids. Append-only; kept for at least 30 days. "
        "Writers: dashboard, collector and commands add, aggregator prunes.",
    )
    op.create_index("audit_trail_at", "audit_trail", ["at"])
    op.execute(AUDIT_TRAIL_IS_KEPT)
    for event, each in (("UPDATE OR DELETE", "ROW"), ("TRUNCATE", "STATEMENT")):
        op.execute(
            f"CREATE TRIGGER audit_trail_{each.lower()}_is_kept BEFORE {event} ON audit_trail "
            f"FOR EACH {each} EXECUTE FUNCTION audit_trail_is_kept()"
        )


def _runs() -> None:
    op.create_table(
        "dag_run",
        text("pipeline", key=True),
        text("dag", key=True),
        text("run_id", key=True),
        bigint("due_at", "epoch ms: end of its data interval, or planned start"),
        bigint("interval_start", "epoch ms: data interval; null: it has none", null=True),
        bigint("interval_end", "epoch ms", null=True),
        text("state", "queued, running, success or failed"),
        bigint("started_at", "epoch ms: of its newest attempt", null=True),
        bigint("ended_at", "epoch ms; null: not yet", null=True),
        bigint("failed_at", "epoch ms: when it first failed, though it succeeded later", null=True),
        bigint("reported_at", "epoch ms on the scheduler's clock; 0: known only from its tasks"),
        comment="Runs of the DAGs that definitions name, as last reported. Writer: collector.",
    )
    op.create_index("dag_run_due", "dag_run", ["pipeline", "dag", "due_at"])
    op.create_table(
        "task_try",
        text("pipeline", key=True),
        text("dag", key=True),
        text("run_id", key=True),
        text("task", key=True),
        integer("map_index", "of a mapped task, else -1", key=True),
        integer("try_number", "from 1; 0: it never started", key=True),
        bigint("due_at", "epoch ms: of its run"),
        text("state", "running, success, failed, skipped or upstream_failed"),
        bigint("started_at", "epoch ms", null=True),
        bigint("ended_at", "epoch ms; null: not yet", null=True),
        bigint("reported_at", "epoch ms on the worker's clock"),
        comment="Attempts of the tasks of these runs, as last reported. Writer: collector.",
    )
    op.create_index("task_try_due", "task_try", ["due_at"])


def _taps() -> None:
    op.create_table(
        "tap",
        binary("emitter", "its id as an emitter, 16 bytes", key=True),
        text("pipeline"),
        text("node"),
        jsonb("tap", "topic, consumer group, places and extraction of ids"),
        bigint("since", "epoch ms: start of its first window"),
        bigint("number", "of the newest plan"),
        jsonb("plan"),
        text("owner", "session that runs it while its name is locked; empty: none"),
        bigint("seen", "records read"),
        bigint("left_out", "of them, records excluded by its filter"),
        bigint("early", "of them, records of windows before its first"),
        bigint("gone", "offsets deleted before they were read"),
        text("commits", "log or polled: source of the group's commits; empty: no group"),
        text("trouble", "why it is waiting; empty: it is not"),
        text("recheck_trouble", "why rows are not compared again; empty: nothing is wrong"),
        comment="Taps, the newest plan of each, and the process that runs it. Writer: taps.",
    )
    op.create_table(
        "tap_tally",
        binary("emitter", key=True),
        text("place", key=True),
        bigint("window_start", "epoch s", key=True),
        text("replay", "empty for live traffic", key=True),
        binary("packed", "the tally, as a report has it"),
        comment="Tallies of taps, up to the plan before the newest. Writer: taps.",
    )
    op.create_table(
        "tap_unreadable",
        binary("emitter", key=True),
        text("reason", key=True),
        bigint("count"),
        bigint("partition", "of the newest example"),
        bigint("offset", "of the newest example"),
        bigint("at", "epoch ms: timestamp of the newest example"),
        comment="Records that taps could not read, by reason. Writer: taps.",
    )
    op.create_table(
        "remembered_rows",
        binary("emitter", key=True),
        bigint("window_start", "epoch s", key=True),
        bigint("number", "of the plan that read them; 0: those that were compared before", key=True),
        bigint("due_at", "epoch ms: when the minute is compared next"),
        bigint("compared_at", "epoch ms: when it was compared last; 0: never"),
        bigint("sample", "ids whose hash modulo 2^32 is below it are remembered; 2^32: all"),
        jsonb("version", "of the table that the rows were seen in"),
        binary("packed", "rows: place, id, event time, when seen and missed"),
        comment="Rows of tapped tables that are compared again, by minute. Writer: taps.",
    )
    op.create_index("remembered_rows_due", "remembered_rows", ["emitter", "due_at"])
    _keep_packed("remembered_rows", "packed")
    op.create_table(
        "lost_afterwards",
        binary("emitter", "of the tap", key=True),
        bigint("window_start", "epoch s", key=True),
        text("pipeline"),
        text("node"),
        text("checkpoint", "at which the rows are beacons"),
        text("source", "the table, as people read it"),
        bigint("lost", "messages, without those whose row is there again"),
        bigint("accepted", "of them, messages that someone has accepted as deleted on purpose"),
        moment("accepted_at", null=True),
        text("accepted_by", null=True),
        text("accepted_why", null=True),
        bigint("compared", "rows of the minute that were compared"),
        bigint("sample", "ids whose hash modulo 2^32 is below it were compared; 2^32: all"),
        text("cause", "deleted, rewritten or recreated: what became of the table's rows"),
        bigint("missed_at", "epoch ms: the first look that missed the newest of them"),
        bigint("until", "epoch ms: the minute is compared up to then"),
        comment="Messages whose rows were in a tapped table and are not any more, by minute. Writers: taps; "
        "lagloss lost-afterwards accepts; aggregator prunes.",
    )
    op.create_index("lost_afterwards_of_pipeline", "lost_afterwards", ["pipeline", "window_start"])
    op.create_index(
        "lost_afterwards_outstanding", "lost_afterwards", ["until"], postgresql_where=sa.text("lost > accepted")
    )
    op.create_table(
        "lost_afterwards_message",
        binary("emitter", "of the tap", key=True),
        bigint("window_start", "epoch s", key=True),
        bigint("id_hash", "xxh3_64 read as signed", key=True),
        text("pipeline"),
        text("message_id"),
        bigint("event_ms", "epoch ms: event time"),
        bigint("place", "cursor of the row when it was seen last"),
        bigint("seen_at", "epoch ms: when it was seen last"),
        bigint("missed_at", "epoch ms: the first look that missed it"),
        text("cause", "deleted, rewritten or recreated"),
        comment="Names of these messages. Writers: taps; aggregator prunes.",
    )
    op.create_index("lost_afterwards_message_of_pipeline", "lost_afterwards_message", ["pipeline", "window_start"])
    op.create_index("lost_afterwards_message_of_id", "lost_afterwards_message", ["id_hash"])


def _repairs() -> None:
    op.create_table(
        "repair",
        text("id", "the header lagloss-replay is repair-ID", key=True),
        text("pipeline"),
        text("place", "link a->b, node a or retrier a"),
        bigint("from_window", "epoch s"),
        bigint("to_window", "epoch s, exclusive"),
        boolean("with_perhaps", "whether messages that are perhaps lost are in the set"),
        text("cluster", "name of the Kafka cluster of the topics; empty: of lagloss's own"),
        jsonb("plan", "topics and how they are read, ends of the topics, loss before"),
        text("set_hash", "SHA-256 of the windows and id hashes of the set, hex"),
        moment("created_at", default=CLOCK),
        text("created_by"),
        text("state", "open, stopped or finished: nothing more is sent"),
        text("stop_reason", "why it stopped, or is to stop; null: it is not to", null=True),
        text("runner", "the process that may write; another one takes its place; empty: none"),
        integer("position", "records of the plan that are done"),
        double("rate", "records per second of its last run; null: it never ran", null=True),
        moment("started_at", "when the first record was about to be sent", null=True),
        moment("ended_at", "when it last stopped or finished", null=True),
        jsonb("statement", "as the command printed it last, without names", null=True),
        comment="Repairs, planned before anything is sent. Writers: lagloss repair, dashboard; aggregator prunes.",
    )
    op.create_index("repair_of_place", "repair", ["pipeline", "place", "from_window"])
    op.create_table(
        "repair_message",
        text("repair", key=True),
        integer("position", key=True),
        text("pipeline"),
        bigint("window_start", "epoch s"),
        bigint("id_hash", "xxh3_64 read as signed"),
        text("message_id", "null if the name is unknown", null=True),
        text("kind", "lost or perhaps"),
        text("target", "topic or queue that it is sent into; null: its record is gone", null=True),
        text("topic", "topic in which its record is; null: gone, or a file", null=True),
        integer("topic_partition", null=True),
        bigint("topic_offset", null=True),
        text(
            "state",
            "planned, sending, sent, arrived or elsewhere (which came meanwhile, and are not sent), gone or refused",
        ),
        boolean("is_delivered", "whether it arrived at its destinations under this replay"),
        comment="Messages of a repair in the order in which they are sent. Writers: as repair.",
    )
    op.create_index("repair_message_of_window", "repair_message", ["id_hash", "window_start"])


def _canary() -> None:
    op.create_table(
        "canary_secret",
        integer("id", "1", key=True),
        binary("secret", "key of the HMAC that its faults follow from"),
        text("token", "of its pipeline, for the collector"),
        comment="The canary's secrets, which no other service reads. Writer: prepare.",
    )
    op.create_table(
        "canary_minute",
        bigint("minute", "epoch s: its start", key=True),
        text("state", "sending, sent, or not due: it was not sent as planned"),
        text("why", "it is not due; empty: it is"),
        moment("began_at"),
        text("verdict", "right, late: right after it was due, or wrong; null: not judged yet", null=True),
        jsonb("problems", "what is wrong, as texts"),
        moment("judged_at", "when it was judged first", null=True),
        integer("revision", "of the window when it was last judged; null: it had no result", null=True),
        integer("shown", "messages that it lost"),
        integer("named", "of them, those that were named at their place"),
        integer("invented", "messages reported as lost that were not"),
        jsonb("notice", "the first notification of this minute that arrived", null=True),
        comment="Minutes of the canary: what was sent, and what lagloss made of it. Writer: canary.",
    )
