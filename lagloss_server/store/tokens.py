"""Tokens that let clients of the collector in: `lagloss_ID_SECRET`, of one pipeline, kept as a hash.

The secret is 256 random bits, so one SHA-256 of it is enough: there is nothing to guess. Salts and slow hashes are for
passwords, which people choose; here they would only make every request slow.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from sqlalchemy import Connection, Row, insert, select, update

from lagloss_server.base.errors import BadText, UnknownToken
from lagloss_server.base.fields import describe
from lagloss_server.store import audit
from lagloss_server.store.limits import demand_room
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import MAX_MOMENT_MS, Store
from lagloss_server.store.unreadable import ReadRows, UnreadableRow, read_each

PREFIX: Final = "lagloss"
"""So that scanners for secrets recognise a token where it does not belong."""
SECRET_BYTES: Final = 32
MAX_TOKENS: Final = 100
"""Of a pipeline, without those that were revoked: collectors read all of them every 2 s."""
MAX_RATE: Final = 10_000_000
"""Beacons per second."""

Scope = Literal["intake", "admin"]
"""`intake`: send beacons of the pipeline. `admin`: also read, change and delete its definition."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token as the database knows it: enough to recognise it, not enough to use it. `rate` in beacons per second."""

    id: str
    pipeline: str
    scope: Scope
    rate: int | None
    secret_hash: bytes
    created_at_ms: int
    revoked_at_ms: int | None = None

    def admits(self, secret: str) -> bool:
        """Return whether this is the token's secret; takes as long for any other."""
        return hmac.compare_digest(hash_secret(secret), self.secret_hash)


def hash_secret(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def recognise(text: str, tokens_by_hash: Mapping[str, Token]) -> Token | None:
    """Return the token that this text is, if it is one of those `tokens_by_hash` (by id)."""
    prefix, _, rest = text.partition("_")
    token_id, _, secret = rest.partition("_")
    token = tokens_by_hash.get(token_id)
    return token if prefix == PREFIX and token is not None and token.admits(secret) else None


def create(store: Store, pipeline: str, scope: Scope = "intake", rate: int | None = None) -> tuple[Token, str]:
    """Return a new token, and its text, which cannot be read again.

    Raises:
        UnknownPipeline: with the names there are.
        LimitReached: the pipeline has as many as it can have.
        BadText: the rate is above `MAX_RATE`.
    """
    if rate is not None and rate > MAX_RATE:
        raise BadText(what="the rate", found=rate, expected=f"up to {MAX_RATE} beacons per second")
    store.demand(pipeline)
    secret = secrets.token_urlsafe(SECRET_BYTES)
    token = Token(secrets.token_hex(6), pipeline, scope, rate, hash_secret(secret), int(time.time() * 1000))
    with store.engine.begin() as connection:
        active = select(tables.TokenRow.id).where(
            tables.TokenRow.pipeline == pipeline, tables.TokenRow.revoked_at.is_(None)
        )
        remedy = "Revoke one with `lagloss token revoke ID`."
        demand_room(connection, active, MAX_TOKENS, f"active tokens of {pipeline}", remedy)
        connection.execute(
            insert(tables.TokenRow).values(
                id=token.id,
                pipeline=pipeline,
                scope=scope,
                rate=rate,
                secret_hash=token.secret_hash,
                created_at=token.created_at_ms,
            )
        )
        audit.note(connection, "token.create", token.id, [pipeline], scope=scope)
    return token, f"{PREFIX}_{token.id}_{secret}"


def read(connection: Connection) -> ReadRows[Token]:
    """Return all tokens, revoked ones too, oldest first. One that this version cannot judge lets no caller in."""
    table = tables.table_of(tables.TokenRow)
    rows = connection.execute(select(table).order_by(table.c.created_at, table.c.id))
    return read_each(rows, _token, lambda row, why: UnreadableRow("token", row.pipeline, row.id, why))


def _token(row: Row[Any]) -> Token:
    if row.scope not in get_args(Scope):
        raise ValueError(f"expected a scope of {' or '.join(get_args(Scope))}, found {describe(row.scope)}")
    if row.rate is not None and row.rate <= 0:
        raise ValueError(f"expected a rate above 0, found {row.rate}")
    if len(row.secret_hash) != hashlib.sha256().digest_size:
        raise ValueError(f"expected a SHA-256, found {len(row.secret_hash)} bytes")
    if not all(0 <= at_ms < MAX_MOMENT_MS for at_ms in (row.created_at, row.revoked_at or 0)):
        raise ValueError("expected times in ms since the epoch, found invalid ones")
    return Token(row.id, row.pipeline, row.scope, row.rate, row.secret_hash, row.created_at, row.revoked_at)


def revoke(store: Store, token_id: str) -> None:
    """End a token; collectors hear of it within seconds.

    Raises:
        UnknownToken: there is none, or it was revoked before.
    """
    table = tables.table_of(tables.TokenRow)
    is_it = (table.c.id == token_id) & table.c.revoked_at.is_(None)
    revoked = update(table).where(is_it).values(revoked_at=int(time.time() * 1000)).returning(table.c.pipeline)
    with store.engine.begin() as connection:
        pipeline = connection.execute(revoked).scalar_one_or_none()
        if pipeline is None:
            raise UnknownToken(id=token_id)
        audit.note(connection, "token.revoke", token_id, [pipeline])
