"""Tables of the pipeline's own PostgreSQL database."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Engine,
    Float,
    Identity,
    Index,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    create_engine,
    func,
    text,
)

METADATA = MetaData()


def _number() -> Column[int]:
    """Return a column by which new rows are found."""
    return Column("n", BigInteger, Identity(always=True), nullable=False, unique=True)


EVENT = Table(
    "event",
    METADATA,
    Column("id", Text, primary_key=True),
    _number(),
    Column("event_ms", BigInteger, nullable=False, comment="epoch ms"),
    Column("hour", BigInteger, nullable=False, comment="start of the span that it lies in, epoch s"),
    Column("campaign", Text, nullable=False),
    Column("user_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("value", Float, nullable=False),
    Column("referrer", Text),
    Column("replay", Text, comment="name of the replay that alone has brought it so far; null: live traffic has"),
    Column("imported_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Index("event_hour", "hour"),
    comment="Events; written by db-import.",
)

SEARCH_ENTRY = Table(
    "search_entry",
    METADATA,
    Column("id", Text, primary_key=True),
    _number(),
    Column("event_ms", BigInteger, nullable=False, comment="epoch ms"),
    Column("text", Text, nullable=False),
    Column("imported_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    comment="Search index of events; written by index-import.",
)

COUNTED = Table(
    "counted",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("hour", BigInteger, nullable=False, comment="that it is aggregated in"),
    Index("counted_hour", "hour"),
    comment="Events that are aggregated; written by the hourly job with what it aggregates them to.",
)


def _scores(name: str, comment: str) -> Table:
    return Table(
        name,
        METADATA,
        Column("hour", BigInteger, nullable=False),
        Column("campaign", Text, nullable=False),
        Column("events", BigInteger, nullable=False),
        Column("value", Float, nullable=False),
        Column("score", Float, nullable=False, comment="share of the value of all campaigns"),
        PrimaryKeyConstraint("hour", "campaign"),
        comment=comment,
    )


SCORE_DRAFT = _scores("score_draft", "Events by hour and campaign, as Spark computed them; written by the hourly job.")
SCORE = _scores("score", "Scores that are loaded; written by the hourly job from score_draft.")

PUBLICATION = Table(
    "publication",
    METADATA,
    Column("hour", BigInteger, primary_key=True),
    Column("rows", BigInteger, nullable=False),
    Column("events", BigInteger, nullable=False),
    Column("digest", Text, nullable=False, comment="SHA-256 of the rows"),
    Column("published_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    comment="Hours whose scores are checked and published; written by the hourly job.",
)

_CREATING = 1_935_897_203
"""Key of the advisory lock under which tables are made: two processes at once would both find none."""


def open_database(url: str) -> Engine:
    """Return an engine for `postgresql://…`."""
    return create_engine(url, pool_pre_ping=True)


def create_tables(engine: Engine) -> None:
    """Create the tables that are missing."""
    with engine.begin() as connection:
        _lock(connection)
        METADATA.create_all(connection)


def _lock(connection: Connection) -> None:
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CREATING})
