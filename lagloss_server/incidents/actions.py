"""Actions on incidents: acknowledge one, silence some for a while, end a silence.

Each is one transaction that notifies the leading alerter, which notifies the receivers.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypedDict
from uuid import UUID

from sqlalchemy import Connection, Row, Text, cast, func, insert, literal, select, update
from sqlalchemy.dialects.postgresql import distinct_on

from lagloss_server.base import format as fmt
from lagloss_server.base.errors import AlreadyAcknowledged, BadSilence, BadText, IncidentIsResolved, UnknownSilence
from lagloss_server.base.fields import is_storable
from lagloss_server.base.times import moment
from lagloss_server.incidents.changes import note_change
from lagloss_server.incidents.incident import Withheld, find, incident_table
from lagloss_server.model.canary import CANARY
from lagloss_server.model.matchers import (
    INCIDENT_LABELS,
    MAX_MATCHER,
    MAX_MATCHERS,
    Matcher,
    labels_of,
    match_all,
    reach,
)
from lagloss_server.store import audit
from lagloss_server.store.engine import ALERTS_CHANNEL
from lagloss_server.store.limits import demand_room
from lagloss_server.store.schema import alerting as alert_tables
from lagloss_server.store.schema import core as tables
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.store import Store
from lagloss_server.store.unreadable import ReadRows, UnreadableRow, read_each

MAX_SILENCE_S: Final = 86_400
MAX_SILENCES: Final = 100
"""Of an author, that hold: the alerter matches each incident with all silences."""
MAX_AUTHOR: Final = 255
"""Characters, as of the names of users whom a provider knows."""
MAX_TEXT: Final = 1_000
"""Characters of a note or a reason: receivers get it, and some of them truncate longer ones."""
silence_table = table_of(alert_tables.SilenceRow)


class SilenceDocument(TypedDict):
    """A silence: see `Silence`."""

    id: str
    matchers: list[str]
    reason: str
    author: str
    starts_at: str | None
    ends_at: str | None
    ended_by: str | None


@dataclass(frozen=True, slots=True)
class Silence:
    """`matchers` as texts; all of them must match. `ended_by`: who ended it early."""

    id: str
    matchers: list[str]
    reason: str
    author: str
    starts_at: datetime
    ends_at: datetime
    ended_by: str | None = None

    @property
    def parsed(self) -> tuple[Matcher, ...]:
        """The matchers. Raises ValueError if one is none that this version knows."""
        return tuple(map(Matcher.parse, self.matchers))

    def withholds(self) -> Withheld:
        """Return what an incident that it matches is withheld by."""
        return Withheld("silence", self.id, self.author, self.reason)

    def document(self) -> SilenceDocument:
        """Return the silence as `lagloss alerts silences --json` prints it."""
        return {
            "id": self.id,
            "matchers": self.matchers,
            "reason": self.reason,
            "author": self.author,
            "starts_at": moment(self.starts_at),
            "ends_at": moment(self.ends_at),
            "ended_by": self.ended_by,
        }


def acknowledge(store: Store, prefix: str, by: str, note: str | None = None) -> UUID:
    """Acknowledge the incident whose id begins so; return its id.

    Raises:
        UnknownIncident: no id begins so.
        AmbiguousIncident: several do.
        AlreadyAcknowledged: another user was faster.
        IncidentIsResolved: it is over.
        BadText: the name or the note cannot be stored.
    """
    storable("a name", by, MAX_AUTHOR)
    storable("a note", note or "", MAX_TEXT)
    with store.engine.begin() as connection:
        incident = find(connection, prefix, lock=True)
        if not incident.is_open:
            raise IncidentIsResolved(id=incident.id, at=moment(incident.resolved_at))
        if incident.acknowledged_at is not None:
            raise AlreadyAcknowledged(id=incident.id, by=incident.acknowledged_by, at=moment(incident.acknowledged_at))
        now = _now(connection)
        connection.execute(
            update(incident_table)
            .where(incident_table.c.id == incident.id)
            .values(acknowledged_at=now, acknowledged_by=by)
        )
        note_change(connection, incident, "acknowledged", now, by=by, note=note)
        notify(connection, f"acknowledged/{incident.id}")
        audit.note(connection, "incident.acknowledge", str(incident.id), [incident.pipeline], rule=incident.rule, by=by)
    return incident.id


def silence(
    store: Store, matchers: Sequence[str], *, reason: str, author: str, for_s: float
) -> tuple[Silence, list[UUID]]:
    """Silence matching incidents from now on; return the silence, and the open incidents that it matches now.

    Raises:
        BadSilence: no matcher or one that is none, no reason, no author, or not within (0, 24 h].
        BadText: one of them cannot be stored, or is too long.
        LimitReached: the author has as many silences that hold.
    """
    parsed = _parsed([storable("a matcher", matcher) for matcher in matchers])
    for name, text in (
        ("a reason", storable("a reason", reason, MAX_TEXT)),
        ("an author", storable("an author", author, MAX_AUTHOR)),
    ):
        if not text.strip():
            raise BadSilence(expected=name, found="none")
    if not 0 < for_s <= MAX_SILENCE_S:
        raise BadSilence(expected="a duration above 0 s and up to 24 h", found=f"{for_s:g} s")
    with store.engine.begin() as connection:
        starts_at, row = _now(connection), silence_table.c
        own = select(row.id).where(row.author == author.strip(), row.ends_at > starts_at)
        remedy = "End one of them, or use one with a pattern: pipeline=~a|b."
        demand_room(connection, own, MAX_SILENCES, f"active silences of {author.strip()}", remedy)
        silence_ = Silence(
            id=secrets.token_hex(4),
            matchers=[str(matcher) for matcher in parsed],
            reason=reason.strip(),
            author=author.strip(),
            starts_at=starts_at,
            ends_at=starts_at + timedelta(seconds=for_s),
        )
        connection.execute(insert(silence_table).values(**asdict(silence_)))
        notify(connection, f"silence/{silence_.id}")
        detail = {"matchers": silence_.matchers, "until": moment(silence_.ends_at), "by": silence_.author}
        audit.note(connection, "silence.create", silence_.id, _reached(connection, silence_.matchers), **detail)
        return silence_, _open_matching(connection, parsed)


def matched_words(about: Sequence[UUID]) -> str:
    """Say how many incidents a silence matches: `it matches 2 open incidents`."""
    if not about:
        return "it matches no open incident"
    return f"it matches {fmt.counted(len(about), 'open incident')}"


def unsilence(store: Store, silence_id: str, by: str) -> None:
    """End a silence now.

    Raises:
        UnknownSilence: there is none with this id that still holds.
    """
    table = silence_table
    holds = (table.c.id == silence_id) & (table.c.ends_at > func.clock_timestamp())
    with store.engine.begin() as connection:
        ended = update(table).where(holds).values(ends_at=func.clock_timestamp(), ended_by=by)
        matchers: list[str] | None = connection.execute(ended.returning(table.c.matchers)).scalar_one_or_none()
        if matchers is None:
            raise UnknownSilence(id=silence_id)
        notify(connection, f"silence/{silence_id}")
        audit.note(connection, "silence.end", silence_id, _reached(connection, matchers), matchers=matchers, by=by)


def silences(store: Store) -> ReadRows[Silence]:
    """Return those that hold now, the one that ends first first."""
    with store.engine.connect() as connection:
        return holding_silences(connection)


def holding_silences(connection: Connection, now: datetime | None = None) -> ReadRows[Silence]:
    """Return those that hold at a moment, by default now. One that is unreadable withholds nothing."""
    row, now_ = silence_table.c, func.clock_timestamp() if now is None else literal(now)
    moments = (cast(row.starts_at, Text).label("starts"), cast(row.ends_at, Text).label("ends"))  # some are no datetime
    columns = (row.id, row.matchers, row.reason, row.author, row.ended_by, *moments)
    holds = (row.starts_at <= now_, row.ends_at > now_)
    rows = connection.execute(select(*columns).where(*holds).order_by(row.ends_at, row.id))
    return read_each(rows, _silence, lambda row, why: UnreadableRow("silence", "", row.id, why))


def _silence(row: Row[Any]) -> Silence:
    if not isinstance(row.matchers, list) or not row.matchers:  # of no matchers, all incidents would match
        raise ValueError("expected a list of matchers, found none")
    starts_at, ends_at = datetime.fromisoformat(row.starts), datetime.fromisoformat(row.ends)
    silence_ = Silence(row.id, row.matchers, row.reason, row.author, starts_at, ends_at, row.ended_by)
    _ = silence_.parsed
    return silence_


def notify(connection: Connection, what: str) -> None:
    """Wakes the leading alerter once this transaction is committed."""
    connection.execute(select(func.pg_notify(ALERTS_CHANNEL, what)))


def storable(what: str, text: str, most: int | None = None) -> str:
    """Return this text; raise BadText if PostgreSQL cannot hold it, or it has more than `most` characters."""
    if most is not None and len(text.strip()) > most:
        raise BadText(what=what, found=f"{len(text.strip())} characters long", expected=f"at most {most}")
    if not is_storable(text):
        raise BadText(what=what, found="text with a NUL or an unpaired surrogate", expected="text without them")
    return text


def checked_matchers(texts: Sequence[str]) -> list[str]:
    """Return the matchers that a person gives for a silence, without empty ones.

    Raises:
        BadSilence: there are more than `MAX_MATCHERS`.
        BadText: one is too long, or cannot be stored.
    """
    given = [text.strip() for text in texts[: MAX_MATCHERS + 1] if text.strip()]
    if len(given) > MAX_MATCHERS:
        raise BadSilence(expected=f"at most {MAX_MATCHERS} matchers", found="more")
    return [storable("a matcher", text, MAX_MATCHER) for text in given]


def _parsed(matchers: Sequence[str]) -> list[Matcher]:
    if not matchers:
        raise BadSilence(expected="at least one matcher such as pipeline=clicks", found="none")
    try:
        return [Matcher.parse(text) for text in matchers]
    except ValueError as error:
        _, _, pattern = str(error).partition("found ")
        raise BadSilence(expected="matchers such as pipeline=clicks or rule=~lag.*", found=pattern) from error


def _open_matching(connection: Connection, matchers: Sequence[Matcher]) -> list[UUID]:
    """Open incidents that these choose, by their labels and those of their pipelines' newest definitions."""
    row, labels = incident_table, pipeline_labels(connection)
    columns = (row.c.id, *(row.c[name] for name in INCIDENT_LABELS))
    rows: list[Row[Any]] = list(
        connection.execute(
            select(*columns).where(row.c.state == "open", row.c.pipeline != CANARY).order_by(row.c.opened_at)
        )
    )
    return [row.id for row in rows if match_all(matchers, labels_of(row, labels.get(row.pipeline)))]


def _reached(connection: Connection, matchers: Sequence[str]) -> frozenset[str]:
    """Return the pipelines that a silence of these could match; none where another version knew another syntax."""
    try:
        return reach([Matcher.parse(text) for text in matchers], pipeline_labels(connection))
    except (ValueError, TypeError):
        return frozenset()


def pipeline_labels(connection: Connection) -> dict[str, dict[str, str]]:
    """Return the labels of the newest definition of each pipeline; of deleted ones, too: their incidents stay. A
    pipeline whose labels are unreadable is left out, so that no team is given it by them."""
    row = tables.table_of(tables.PipelineRow).c
    of_all = select(row.name, cast(row.definition["metadata"], Text).label("metadata"))
    newest = of_all.order_by(row.name, row.version.desc()).ext(distinct_on(row.name))
    return dict(
        read_each(connection.execute(newest), _labels, lambda row, why: UnreadableRow("definition", row.name, "", why))
    )


def _labels(row: Row[Any]) -> tuple[str, dict[str, str]]:
    labels = json.loads(row.metadata or "null").get("labels") or {}
    if not all(isinstance(text, str) for text in (*labels.keys(), *labels.values())):
        raise ValueError("expected strings")
    return row.name, labels


def _now(connection: Connection) -> datetime:
    """Return the database's clock: the alerter, which may run elsewhere, goes by it."""
    now: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    return now
