"""People who log in to the dashboard by a password, which PostgreSQL keeps as an argon2id hash."""

from __future__ import annotations

import re
import secrets
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, get_args

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlalchemy import Connection, Row, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from lagloss_server.base.errors import BadGroup, BadPassword, BadUserName, LimitReached, UnknownUser, UserExists
from lagloss_server.base.fields import describe
from lagloss_server.model.roles import Role
from lagloss_server.store import audit
from lagloss_server.store.limits import demand_room
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.schema.dashboard import SessionRow, UserRow
from lagloss_server.store.store import Store
from lagloss_server.store.unreadable import ReadRows, UnreadableRow, read_each

LOCAL_LOGIN: Final = "local"
"""Mark of these users' sessions: another login can know another person by the same name."""
MIN_PASSWORD_LENGTH: Final = 12
MAX_PASSWORD_LENGTH: Final = 1_000
"""Longer ones only keep a core busy."""
MAX_USERS: Final = 10_000
MAX_GROUPS: Final = 1_000
"""Of one user."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._@+-]{0,63}")
_GROUP: Final = re.compile(r"[^\s,*\x00-\x1f\x7f][^,\x00-\x1f\x7f]{0,99}")
"""As other logins have them: no comma, which separates them in headers, and no `*`, which stands for every user."""
_HASHER: Final = PasswordHasher()
"""The parameters of RFC 9106 for servers with little memory, as argon2-cffi has them: 64 MiB, about 50 ms."""
_user: Final = table_of(UserRow)
_session: Final = table_of(SessionRow)


@dataclass(frozen=True, slots=True)
class User:
    """A person with a password. `password_hash`: the one that they were recognised by. `groups`: by which teams know
    them."""

    name: str
    role: Role
    created_at: datetime
    password_hash: str = field(repr=False)
    groups: tuple[str, ...] = ()


def add(store: Store, name: str, role: Role, password: str, groups: Sequence[str] = ()) -> User:
    """Return a new user.

    Raises:
        BadUserName, BadPassword, BadGroup: with the requirements.
        UserExists: the name is taken.
        LimitReached: there are as many as there can be.
    """
    name = name.lower()
    if not _NAME.fullmatch(name):
        raise BadUserName(name=name)
    user = User(name, role, datetime.now(UTC), _hashed(password), _checked(groups))
    with store.engine.begin() as connection:
        remedy = "Remove one with `lagloss users remove NAME`, or let an OpenID provider know them."
        demand_room(connection, select(_user.c.name), MAX_USERS, "users", remedy)
        added = insert(_user).values(asdict(user)).on_conflict_do_nothing().returning(_user.c.name)
        if connection.execute(added).one_or_none() is None:
            raise UserExists(name=name)
        audit.note(connection, "user.add", name, role=role, groups=list(user.groups))
    return user


def set_password(store: Store, name: str, password: str) -> None:
    """Give a user another password, and end their sessions.

    Raises:
        BadPassword: with the requirements.
        UnknownUser: with the names there are.
    """
    password_hash = _hashed(password)
    with store.engine.begin() as connection:
        _change(connection, name, password_hash=password_hash)
        end_sessions(connection, name, LOCAL_LOGIN)
        audit.note(connection, "user.password", name.lower())


def set_role(store: Store, name: str, role: Role) -> None:
    """Give a user another role, in their sessions, too.

    Raises:
        UnknownUser: with the names there are.
    """
    with store.engine.begin() as connection:
        _change(connection, name, role=role)
        _change_sessions(connection, name, role=role)
        audit.note(connection, "user.role", name.lower(), role=role)


def set_groups(store: Store, name: str, groups: Sequence[str]) -> None:
    """Give a user these groups and no others, in their sessions, too.

    Raises:
        BadGroup: with the requirements.
        UnknownUser: with the names there are.
    """
    groups_ = list(_checked(groups))
    with store.engine.begin() as connection:
        _change(connection, name, groups=groups_)
        _change_sessions(connection, name, groups=groups_)
        audit.note(connection, "user.groups", name.lower(), groups=groups_)


def remove(store: Store, name: str) -> None:
    """Remove a user, and end their sessions.

    Raises:
        UnknownUser: with the names there are.
    """
    with store.engine.begin() as connection:
        if not connection.execute(delete(_user).where(_user.c.name == name.lower())).rowcount:
            raise _unknown(connection, name)
        end_sessions(connection, name, LOCAL_LOGIN)
        audit.note(connection, "user.remove", name.lower())


def log_out(store: Store, name: str) -> int:
    """End all sessions of a person, of every kind of login; return how many there were."""
    with store.engine.begin() as connection:
        count = end_sessions(connection, name)
        audit.note(connection, "user.logout", name, sessions=count)
    return count


def end_sessions(connection: Connection, name: str, login: str | None = None) -> int:
    """End all sessions of a person, of every kind of login unless one is given; return how many there were."""
    is_theirs = func.lower(_session.c.name) == name.lower()
    if login is not None:
        is_theirs &= _session.c.login == login
    return connection.execute(delete(_session).where(is_theirs)).rowcount


def read(connection: Connection) -> ReadRows[User]:
    """Return all users, by name. One that this version cannot read does not get in."""
    rows = connection.execute(select(_user).order_by(_user.c.name))
    return read_each(rows, _as_user, _unreadable)


def recognise(store: Store, name: str, password: str) -> User | None:
    """Return the user of this name, if this is their password. Takes as long if there is none: no caller learns who
    is a user. A hash with outdated parameters is replaced."""
    with store.engine.connect() as connection:
        user = _find(connection, name)
    try:
        is_theirs = _HASHER.verify(user.password_hash if user else _decoy(), _normal(password))
    except (VerificationError, InvalidHashError):
        return None
    if user is None or not is_theirs:
        return None
    return _hashed_anew(store, user, password) if _HASHER.check_needs_rehash(user.password_hash) else user


def hold(connection: Connection, user: User) -> User | None:
    """Return the user as they are now, held until the transaction's end; None once their password is another or they
    are gone. A session that begins in this transaction is seen by a later change of the user."""
    is_same = (_user.c.name == user.name) & (_user.c.password_hash == user.password_hash)
    row = connection.execute(select(_user).where(is_same).with_for_update(read=True)).one_or_none()
    return _readable(row)


def _find(connection: Connection, name: str) -> User | None:
    if not _NAME.fullmatch(name.lower()):
        return None
    return _readable(connection.execute(select(_user).where(_user.c.name == name.lower())).one_or_none())


def _checked(groups: Sequence[str]) -> tuple[str, ...]:
    if len(groups) > MAX_GROUPS:
        raise LimitReached(limit=f"{MAX_GROUPS:,}", what="groups of a user", remedy="Give fewer.")
    for group in groups:
        if not _GROUP.fullmatch(group):
            raise BadGroup(group=group)
    return tuple(dict.fromkeys(groups))


def _change_sessions(connection: Connection, name: str, **values: Any) -> None:
    is_theirs = (_session.c.login == LOCAL_LOGIN) & (_session.c.name == name.lower())
    connection.execute(update(_session).where(is_theirs).values(values))


def _change(connection: Connection, name: str, **values: Any) -> None:
    if not connection.execute(update(_user).where(_user.c.name == name.lower()).values(values)).rowcount:
        raise _unknown(connection, name)


def _unknown(connection: Connection, name: str) -> UnknownUser:
    names = [user.name for user in read(connection)]
    return UnknownUser(name=name, known=f"existing users: {', '.join(names)}" if names else "no users exist yet")


def _hashed(password: str) -> str:
    if not MIN_PASSWORD_LENGTH <= len(_normal(password)) <= MAX_PASSWORD_LENGTH:
        raise BadPassword(least=MIN_PASSWORD_LENGTH, most=MAX_PASSWORD_LENGTH, found=len(_normal(password)))
    return _HASHER.hash(_normal(password))


def _hashed_anew(store: Store, user: User, password: str) -> User:
    password_hash = _HASHER.hash(_normal(password))
    is_same = (_user.c.name == user.name) & (_user.c.password_hash == user.password_hash)
    with store.engine.begin() as connection:
        connection.execute(update(_user).where(is_same).values(password_hash=password_hash))
    return replace(user, password_hash=password_hash)


def _normal(password: str) -> str:
    """Keyboards make the same letter in several ways (NIST SP 800-63B, 5.1.1.2)."""
    return unicodedata.normalize("NFKC", password)


@cache
def _decoy() -> str:
    """Return the hash to compare with if there is no such user."""
    return _HASHER.hash(secrets.token_urlsafe())


def read_grants(row: Row[Any]) -> tuple[Role, tuple[str, ...]]:
    """Return role and groups of a user, or of a session.

    Raises:
        ValueError: they are none that this version knows. What they let their holder do is unknown then.
    """
    if row.role not in get_args(Role):
        raise ValueError(f"expected a role of {' or '.join(get_args(Role))}, found {describe(row.role)}")
    if not isinstance(row.groups, list) or not all(isinstance(group, str) for group in row.groups):
        raise ValueError(f"expected a list of groups, found {describe(row.groups)}")
    return row.role, tuple(row.groups)


def _as_user(row: Row[Any]) -> User:
    role, groups = read_grants(row)
    return User(row.name, role, row.created_at, row.password_hash, groups)


def _readable(row: Row[Any] | None) -> User | None:
    return None if row is None else next(iter(read_each([row], _as_user, _unreadable)), None)


def _unreadable(row: Row[Any], why: str) -> UnreadableRow:
    return UnreadableRow("user", "", row.name, why)
