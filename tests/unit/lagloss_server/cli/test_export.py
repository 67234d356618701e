"""The command `lagloss export`, on a store and a log that stand in for real ones."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from lagloss_server.base.errors import UnknownWindow
from lagloss_server.cli import main
from lagloss_server.judging.picked import PickedMessages
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.named_messages import KeptMessages
from lagloss_server.store.store import MissingMessage
from tests.support.faulty_worlds import START_S, faulty_world, presence_of

LOST = MissingMessage(START_S, 7, "m-1", "lost", ["link a->b"], "a.out", START_S * 1_000.0)
KEPT = KeptMessages(START_S, [LOST], PickedMessages(), counts={"lost": 2})


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A stored window whose log cannot be read; the looks at message ids that were noted."""
    found: list[tuple[Any, ...]] = []
    store = SimpleNamespace(engine=None, demand=lambda _: None, windows=lambda *_: [{}])

    @contextmanager
    def opened(_: Any) -> Iterator[Any]:
        yield store

    monkeypatch.setattr(main, "open_store", opened)
    monkeypatch.setattr("lagloss_server.store.audit.note_look", lambda *look: found.append(look[1:]))
    monkeypatch.setattr("lagloss_server.queries.named_messages.read_kept", lambda *_: KEPT)
    monkeypatch.setattr(main, "_read_presence", lambda *_: None)
    return found


def run(*options: str) -> Result:
    arguments = ["export", "faulty", "--window", rfc3339(START_S + 30), *options]
    return CliRunner().invoke(main.app, arguments, catch_exceptions=False)


def test_what_the_closing_kept_is_written_with_a_note_that_there_is_more(looks: list[tuple[Any, ...]]) -> None:
    done = run("--what", "lost", "--format", "json")
    document = json.loads(done.stdout)
    assert (done.exit_code, document["source"], document["truncated"]) == (0, "closing", True)
    assert [message["message_id"] for message in document["messages"]] == ["m-1"]
    assert "The list is incomplete" in done.stderr
    assert looks == [("ids.export", "faulty", rfc3339(START_S))]
    assert "The list is incomplete" not in run("--what", "dead").stderr


def test_the_log_is_written_whole_to_a_file(
    looks: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world = faulty_world("process", "late", 1, messages=500)
    monkeypatch.setattr(main, "_read_presence", lambda *_: presence_of(world))
    parquet = pytest.importorskip("pyarrow.parquet")
    run("--what", "late", "--format", "parquet", "--out", str(tmp_path / "late.parquet"))
    rows = list(csv.DictReader(io.StringIO(run("--what", "late").stdout, newline="")))
    table = parquet.read_table(tmp_path / "late.parquet")
    assert table.num_rows == len(rows) > 0
    assert table.column("message_id").to_pylist() == [row["message_id"] for row in rows]
    assert len(looks) == 2


def test_a_window_of_which_nothing_is_known_is_an_error(
    looks: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SimpleNamespace(engine=None, demand=lambda _: None, windows=lambda *_: [])

    @contextmanager
    def opened(_: Any) -> Iterator[Any]:
        yield store

    monkeypatch.setattr(main, "open_store", opened)
    with pytest.raises(UnknownWindow):
        run()
    assert looks
