"""Prepares a Kafka and a PostgreSQL for lagloss; can be repeated: `python -m lagloss_server.ops.prepare`."""

from __future__ import annotations

import sys

from sqlalchemy.exc import OperationalError

from lagloss.broker.topics import create_topics
from lagloss.errors import LaglossError
from lagloss_server.errors import DatabaseUnreachable
from lagloss_server.settings import Settings, blank_password
from lagloss_server.store.migrate import migrate


def prepare(settings: Settings) -> None:
    """Create the topics and bring the tables up to date. Raises KafkaUnreachable, DatabaseUnreachable."""
    create_topics(settings.require_kafka(), replication=settings.topic_replication)
    url = settings.require_database()
    try:
        migrate(url)
    except OperationalError as error:
        detail = str(error.orig).strip().splitlines()[-1]
        raise DatabaseUnreachable(url=blank_password(url), detail=detail) from error


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
