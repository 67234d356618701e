"""Prepares a Kafka and a PostgreSQL for lagloss; can be repeated: `python -m lagloss_server.ops.prepare`."""

from __future__ import annotations

import sys

from sqlalchemy.exc import OperationalError, ProgrammingError

from lagloss.broker.topics import create_topics
from lagloss.errors import LaglossError
from lagloss_server.base.database_url import without_password
from lagloss_server.base.errors import DatabaseUnreachable
from lagloss_server.base.settings import Settings
from lagloss_server.store.engine import engine_for
from lagloss_server.store.migrate import migrate
from lagloss_server.store.rights import grant


def prepare(settings: Settings) -> None:
    """Create the topics, bring the tables up to date, and give the services' roles their rights.

    Raises:
        KafkaUnreachable, DatabaseUnreachable: one does not answer, or refuses.
    """
    create_topics(settings.require_kafka(), replication=settings.topic_replication)
    url = settings.require_database()
    engine = engine_for(url)
    try:
        migrate(url)
        with engine.begin() as connection:
            grant(connection)
    except (OperationalError, ProgrammingError) as error:
        detail = str(error.orig).strip().splitlines()[-1]
        raise DatabaseUnreachable(url=without_password(url), detail=detail) from error
    finally:
        engine.dispose()


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
