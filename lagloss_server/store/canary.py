"""The canary's pipeline and secrets, as `prepare` makes them.

The secret is in PostgreSQL: canary and database are all that `up`, compose and Kubernetes have in common, and with
roles, no other service reads its table.
"""

from __future__ import annotations

import secrets
from typing import Final

from sqlalchemy import insert, select

from lagloss_server.model.canary import CANARY
from lagloss_server.model.canary_definition import canary_definition
from lagloss_server.store import tokens
from lagloss_server.store.schema.canary import CanarySecretRow
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.store import Store

SECRET_BYTES: Final = 32
_ONLY: Final = 1


def prepare_canary(store: Store, *, has_table: bool = False) -> None:
    """Store the canary's definition, and make its secrets unless they are there. `has_table`: see the definition."""
    store.change([canary_definition(has_table=has_table)], is_own=True)
    table = table_of(CanarySecretRow)
    with store.engine.connect() as connection:
        if connection.execute(select(table.c.id)).first() is not None:
            return
    _, token = tokens.create(store, CANARY)
    with store.engine.begin() as connection:
        connection.execute(insert(table).values(id=_ONLY, secret=secrets.token_bytes(SECRET_BYTES), token=token))


def remove_canary(store: Store) -> None:
    """Delete the canary's pipeline, if there is one. Its windows stay until retention takes them."""
    with store.engine.connect() as connection:
        exists = connection.execute(select(table_of(CanarySecretRow).c.id)).first() is not None
    if exists and store.newest_versions([CANARY]):
        store.change(deleted=[CANARY], is_own=True)
