"""Prepares a Kafka and a PostgreSQL for lagloss; can be repeated: `python -m lagloss_server.ops.prepare`."""

from __future__ import annotations

import sys

from sqlalchemy.exc import OperationalError, ProgrammingError

from lagloss.broker.topics import create_canary_topic, create_topics
from lagloss.errors import LaglossError
from lagloss_server.base.database_url import without_password
from lagloss_server.base.errors import DatabaseUnreachable
from lagloss_server.base.settings import Settings
from lagloss_server.model.canary import CANARY_TOPIC, TABLE_DATABASE
from lagloss_server.net.table_urls import is_named
from lagloss_server.store.canary import prepare_canary, remove_canary
from lagloss_server.store.migrate import migrate
from lagloss_server.store.rights import grant
from lagloss_server.store.store import Store


def prepare(settings: Settings) -> None:
    """Create the topics, bring the tables up to date, and give the services' roles their rights.

    Raises:
        KafkaUnreachable, DatabaseUnreachable: one does not answer, or refuses.
    """
    replication = settings.topic_replication
    create_topics(settings.require_kafka(), replication=replication)
    if settings.canary == "on":
        create_canary_topic(settings.require_kafka(), CANARY_TOPIC, replication=replication)
    url = settings.require_database()
    store = Store(url)
    try:
        migrate(url)
        if settings.canary == "on":
            prepare_canary(store, has_table=is_named(TABLE_DATABASE))
        else:
            remove_canary(store)
        with store.engine.begin() as connection:
            grant(connection)
    except (OperationalError, ProgrammingError) as error:
        detail = str(error.orig).strip().splitlines()[-1]
        raise DatabaseUnreachable(url=without_password(url), detail=detail) from error
    finally:
        store.close()


def main() -> int:
    """Prepare the servers that the environment names; return exit code 0, or an error's."""
    try:
        prepare(Settings.load())
    except LaglossError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
