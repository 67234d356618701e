"""The one place that keeps what a person may not see from being read: a store whose tables lack the rows of others.

A statement of a person with limited sight is run with a common table expression in front for each table that it names:
`WITH "window" AS NOT MATERIALIZED (SELECT * FROM "window" WHERE pipeline = ANY (…)) SELECT … FROM "window" …`. Within
the statement that name then means the expression, whatever the statement is. A table that is not known here is empty.
"""

from __future__ import annotations

import re
from typing import Any, Final

from sqlalchemy import Engine, event

from dashboard.request.current_user import asking
from dashboard.request.grants import Grants, Pipelines
from lagloss_server.base.errors import IdsHidden
from lagloss_server.store import audit
from lagloss_server.store.schema import alerting, canary, dashboard, ownership, repair, runs, taps  # noqa: F401  # their tables are registered
from lagloss_server.store.schema.core import Base
from lagloss_server.store.store import Store

OPEN: Final = frozenset({"lease", "pruned", "reports_position"})
"""Tables that say nothing of pipelines: everybody may read them whole."""
_OWNER: Final = {"pipeline": "name"}
"""The column with the pipeline's name, where it is not `pipeline`."""
_OF_INCIDENTS: Final = frozenset({"incident_change", "outbox"})
"""Tables whose rows belong to an incident, by `incident_id`; a test of a receiver to none."""
_OF_GROUPS: Final = frozenset({"cluster_group"})
"""Tables whose rows belong to the pipelines in `pipelines`, if to any."""
_OF_TAPS: Final = frozenset({"tap_tally", "tap_unreadable"})
"""Tables whose rows belong to a tap, by `emitter`."""
_WITH_IDS: Final = frozenset(
    {"lost_afterwards_message", "missing_message", "quarantine", "remembered_rows", "repair_message"}
)
"""Tables in which message ids stand, the beginning of a bad record among them."""
_WORD: Final = re.compile(r"\w+")


class ScopedStore(Store):
    """A store that reads what the person who asks may see, and nothing where no request is answered. Reads only."""

    def __init__(self, whole: Store) -> None:
        self._whole = whole
        self._narrow = _narrowed(whole.engine)

    @property
    def engine(self) -> Engine:
        grants = asking().grants
        return self._whole.engine if grants.sees is None and grants.ids is None else self._narrow

    @property
    def unscoped(self) -> Store:
        return self._whole

    @property
    def is_whole(self) -> bool:
        return asking().grants.is_whole

    def may_see_ids(self, pipeline: str) -> bool:
        return asking().grants.may_see_ids(pipeline)

    def look_at_ids(self, look: audit.Look, pipeline: str, what: str) -> None:
        """Note the look in the audit trail. Raises IdsHidden."""
        person = asking()
        if not person.grants.may_see_ids(pipeline):
            raise IdsHidden(name=person.name, pipeline=pipeline)
        audit.note_look(self._whole.engine, look, pipeline, what)

    def close(self) -> None:
        self._whole.close()


def _narrowed(engine: Engine) -> Engine:
    """Return an engine on the same connections that reads what the person who asks may see, and writes nothing."""
    narrow = engine.execution_options(postgresql_readonly=True)

    @event.listens_for(narrow, "before_cursor_execute", retval=True)
    def scope(
        _connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _executemany: bool
    ) -> tuple[str, Any]:
        return scoped(statement, parameters, asking().grants)

    return narrow


def scoped(statement: str, parameters: dict[str, Any], grants: Grants) -> tuple[str, dict[str, Any]]:
    """Return the statement, and its parameters, such that it finds only rows that these grants let be seen.

    Raises:
        ValueError: it is more than a SELECT.
    """
    if not statement.lstrip().startswith("SELECT"):
        raise ValueError(f"expected a SELECT, found {statement[:40]!r}: what is scoped is read only")
    words = set(_WORD.findall(statement))
    named = sorted(words & Base.metadata.tables.keys())
    instead = {name: query for name in named if (query := _rows(name, grants)) is not None}
    if not instead:
        return statement, parameters
    shadows = ", ".join(f'"{name}" AS NOT MATERIALIZED ({query})' for name, query in instead.items())
    rights = {"sees": grants.sees, "acts": grants.acts, "ids": grants.ids}
    more = {f"lagloss_{name}": sorted(those) for name, those in rights.items() if those is not None}
    return f"WITH {shadows} {statement}", {**parameters, **more}


def _rows(name: str, grants: Grants) -> str | None:
    """Return what stands for a table; None: the table itself."""
    columns = Base.metadata.tables[name].c
    if name in OPEN:
        return None
    if name == "audit_trail":
        own = "jsonb_array_length(pipelines) > 0 AND pipelines <@ to_jsonb(%(lagloss_acts)s::text[])"
        return None if grants.acts is None else _select(name, own)
    if name in _WITH_IDS:
        return _select(name, _among("ids", grants.ids) if "pipeline" in columns else _all_or_none(grants.ids))
    if name == "incident":
        return _select(name, _among("sees", grants.sees), detail=_detail(grants))
    if name in _OF_INCIDENTS:
        visible = _among("sees", grants.sees)
        of_seen = visible and f"incident_id IN (SELECT id FROM incident WHERE {visible})"
        return _select(name, of_seen, **({"body": "'{}'::jsonb"} if name == "outbox" else {}))
    if name in _OF_TAPS:
        visible = _among("sees", grants.sees)
        return _select(name, visible and f"emitter IN (SELECT emitter FROM tap WHERE {visible})")
    if name in _OF_GROUPS:
        visible = _among("sees", grants.sees, "named")
        return _select(
            name, visible and f"EXISTS (SELECT FROM jsonb_array_elements_text(pipelines) named WHERE {visible})"
        )
    if name in _OWNER or "pipeline" in columns:
        return _select(name, _among("sees", grants.sees, _OWNER.get(name, "pipeline")))
    return _select(name, _all_or_none(grants.sees))


def _select(name: str, condition: str | None, **instead: str | None) -> str | None:
    """Return what stands for a table; None: the table itself. `instead`: expressions for columns."""
    changed = {column: expression for column, expression in instead.items() if expression is not None}
    if condition is None and not changed:
        return None
    quoted = {column.name: f'"{column.name}"' for column in Base.metadata.tables[name].c}
    columns = (f"{changed[column]} AS {own}" if column in changed else own for column, own in quoted.items())
    return f'SELECT {", ".join(columns)} FROM "{name}" WHERE {condition or "true"}'


def _among(kind: str, those: Pipelines, column: str = "pipeline") -> str | None:
    return None if those is None else f"{column} = ANY (%(lagloss_{kind})s::text[])"


def _all_or_none(those: Pipelines) -> str | None:
    """Return the condition on rows that are of no pipeline: only who may see every one may see them."""
    return None if those is None else "false"


def _detail(grants: Grants) -> str | None:
    """Return the detail of an incident without what names messages: the examples, and a cause that is a beginning of
    ids."""
    shown = _among("ids", grants.ids)
    names = """jsonb_path_exists(detail, '$.blame.** ? (@.kind == "prefix")')"""
    without = f"jsonb_set(CASE WHEN {names} THEN detail - 'blame' ELSE detail END, '{{examples}}', '[]')"
    return shown and f"CASE WHEN {shown} THEN detail ELSE {without} END"
