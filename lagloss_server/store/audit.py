"""The audit trail: who did what, or looked at message ids, when and from where. Entries are added, never changed.

What is done and its entry are one transaction: neither is there without the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import Connection, Engine, exists, func, insert, literal, select, text

from lagloss_server.store.schema.audit import AuditTrailRow
from lagloss_server.store.schema.core import table_of

Look = Literal["ids.window", "ids.search", "ids.list", "ids.export", "ids.incident"]
"""Looks at message ids: at those of a window, at one that was searched for, at the newest of a
pipeline, at all of a window as a file, at the
examples of an incident."""
Action = Literal[
    "ids.window",
    "ids.search",
    "ids.list",
    "ids.export",
    "ids.incident",
    "session.begin",
    "session.end",
    "incident.acknowledge",
    "silence.create",
    "silence.end",
    "receiver.test",
    "recompute",
    "repair.start",
    "repair.stop",
    "lost-afterwards.accept",
    "definition.apply",
    "definition.delete",
    "mcp.call",
    "token.create",
    "token.revoke",
    "user.add",
    "user.password",
    "user.role",
    "user.groups",
    "user.remove",
    "user.logout",
]
ACTIONS: Final[dict[Action, str]] = {
    "ids.window": "viewed message ids of a window",
    "ids.search": "searched for a message",
    "ids.list": "viewed the newest messages",
    "ids.export": "exported message ids of a window",
    "ids.incident": "viewed the examples of an incident",
    "session.begin": "logged in",
    "session.end": "logged out",
    "incident.acknowledge": "acknowledged an incident",
    "silence.create": "created a silence",
    "silence.end": "ended a silence",
    "receiver.test": "tested a receiver",
    "recompute": "requested a recompute",
    "repair.start": "sent lost messages again",
    "repair.stop": "stopped a repair",
    "lost-afterwards.accept": "accepted messages that are lost afterwards",
    "definition.apply": "applied a definition",
    "definition.delete": "deleted a pipeline",
    "mcp.call": "called a tool for agents",
    "token.create": "created a token",
    "token.revoke": "revoked a token",
    "user.add": "added a user",
    "user.password": "changed a password",
    "user.role": "changed a user's role",
    "user.groups": "changed a user's groups",
    "user.remove": "removed a user",
    "user.logout": "ended a user's sessions",
}
"""Every action, as a sentence about its actor goes on."""
LOOK_AGAIN_S: Final = 600
"""The same look of the same person at the same thing is added once in so long, however often a page is refreshed."""
MAX_PIPELINES: Final = 100
"""An entry names no more; one that concerns more is of the whole installation."""
_MAX_OBJECT: Final = 300
audit_table: Final = table_of(AuditTrailRow)


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts. `known_by`: how that is known: by the dashboard's login (local, oidc, proxy), a token of the collector
    (token), as a process of the collector's machine (machine), as the user of a machine who types a command (command),
    or not at all (none). `address`: where they are; of a command the machine's name."""

    name: str
    known_by: str = "none"
    address: str | None = None


_SERVICE: Final = Actor("lagloss")
_acting: ContextVar[Actor] = ContextVar("acting", default=_SERVICE)


def acting() -> Actor:
    """Return the actor that stands in entries now."""
    return _acting.get()


def act_as(actor: Actor) -> None:
    """Let this actor stand in entries, for the rest of this request, in the threads that it waits for, too."""
    _acting.set(actor)


@contextmanager
def acting_as(actor: Actor) -> Iterator[None]:
    """Let this actor stand in entries for as long as the block lasts."""
    token = _acting.set(actor)
    try:
        yield
    finally:
        _acting.reset(token)


def note(connection: Connection, action: Action, target: str, pipelines: Collection[str] = (), **detail: Any) -> None:
    """Add an entry in this transaction: that the actor did something to `target`, which concerns these pipelines."""
    # inline: without RETURNING, for which a role that only adds would need to read
    connection.execute(insert(audit_table).values(_values(action, target, pipelines, detail)).inline())


def note_look(engine: Engine, look: Look, pipeline: str, target: str) -> None:
    """Add an entry about message ids that are about to be shown, unless there is the same of the last minutes."""
    values = _values(look, target, (pipeline,), {})
    row = audit_table.c
    same = (row[name] == values[name] for name in ("actor", "known_by", "address", "action", "object", "pipelines"))
    since = func.clock_timestamp() - text(f"interval '{LOOK_AGAIN_S} s'")
    lately = exists().where(row.at > since, *(condition for condition in same))
    statement = select(*(literal(value, row[name].type) for name, value in values.items())).where(~lately)
    with engine.begin() as connection:
        connection.execute(insert(audit_table).from_select(list(values), statement))


def _values(action: Action, target: str, pipelines: Collection[str], detail: dict[str, Any]) -> dict[str, Any]:
    actor = acting()
    return {
        "actor": actor.name,
        "known_by": actor.known_by,
        "address": actor.address,
        "action": action,
        "object": target[:_MAX_OBJECT],
        "pipelines": sorted(pipelines) if len(pipelines) <= MAX_PIPELINES else [],
        "detail": detail,
    }
