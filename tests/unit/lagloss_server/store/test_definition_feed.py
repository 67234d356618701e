"""Definitions as they change under a process: what a look reads of the changes is what a new process would read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.model.definition import Definition, StoredPipeline
from lagloss_server.store import definition_feed
from lagloss_server.store.definition_feed import DefinitionFeed
from lagloss_server.store.unreadable import ReadRows, UnreadableRow

SPEC = {"nodes": [{"name": "a", "to": ["b"]}, {"name": "b"}]}
NAMES = ("orders", "clicks", "mails")


def definition(name: str) -> Definition:
    document = {"apiVersion": "lagloss/v1", "kind": "Pipeline", "metadata": {"name": name}, "spec": SPEC}
    return Definition.model_validate(document)


DEFINITIONS = {name: definition(name) for name in NAMES}


class Rows:
    """Rows of definitions as the store reads them; of each, whether it is readable. `reads` counts versions."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], bool] = {}
        self.stamps: dict[tuple[str, int], int] = {}
        self.deleted: set[tuple[str, int]] = set()
        """Rows with the mark of a deletion, which counts in a pipeline's newest."""
        self.transactions = 0
        self.reads = 0

    def put(self, name: str, version: int, *, is_readable: bool) -> None:
        self.transactions += 1
        self.rows[name, version], self.stamps[name, version] = is_readable, self.transactions

    def remove(self, key: tuple[str, int]) -> None:
        del self.rows[key], self.stamps[key]
        self.deleted.discard(key)

    def count_changes(self) -> int:
        return sum(hash(version) for version in self.stamps.items())

    def version_stamps(self) -> dict[str, dict[int, int]]:
        found: dict[str, dict[int, int]] = {}
        for (name, version), stamp in sorted(self.stamps.items()):
            if (name, self.newest(name)) not in self.deleted:
                found.setdefault(name, {})[version] = stamp
        return found

    def versions_at(self, keys: Sequence[tuple[str, int]]) -> ReadRows[StoredPipeline]:
        found: ReadRows[StoredPipeline] = ReadRows()
        for name, version in keys:
            self.reads += (name, version) in self.rows
            if self.rows.get((name, version)):
                found.append(StoredPipeline(name, version, version * 1_000, DEFINITIONS[name]))
            elif (name, version) in self.rows:
                found.unreadable.append(UnreadableRow("definition", name, str(version), "no", version * 1_000))
        return found

    def newest(self, name: str) -> int:
        return max((version for other, version in self.rows if other == name), default=0)


def feed_of(rows: Rows) -> DefinitionFeed[tuple[int, ...]]:
    """A feed that keeps the numbers of the readable versions."""
    return DefinitionFeed(
        rows,  # type: ignore[arg-type]
        lambda before, stored, _unreadable: (*(before or ()), *(each.version for each in stored)),
    )


def state(feed: DefinitionFeed[tuple[int, ...]]) -> object:
    return dict(feed.pipelines), dict(feed.waiting), sorted(feed.unreadable), dict(feed.kept_of_waiting)


@given(st.data())
def test_after_any_changes_a_look_finds_what_a_new_process_would(data: st.DataObject) -> None:
    rows = Rows()
    feed = feed_of(rows)
    for _ in range(data.draw(st.integers(1, 12))):
        name = data.draw(st.sampled_from(NAMES))
        newest = rows.newest(name)
        step = data.draw(st.sampled_from(["store", "change", "remove", "delete"]))
        if step == "store":  # which also brings a deleted pipeline back
            rows.put(name, newest + 1, is_readable=data.draw(st.booleans()))
        elif step == "delete" and newest:
            rows.put(name, newest, is_readable=rows.rows[name, newest])
            rows.deleted.add((name, newest))
        elif rows.rows and step in ("change", "remove"):
            key = data.draw(st.sampled_from(sorted(rows.rows)))
            if step == "change":
                rows.put(*key, is_readable=data.draw(st.booleans()))
            else:
                rows.remove(key)
        if data.draw(st.booleans()):
            feed.look()
            fresh = feed_of(rows)
            fresh.look()
            assert state(feed) == state(fresh)


@pytest.mark.parametrize("at_a_time", [500, 7])
def test_a_look_reads_what_is_new_or_changed_and_nothing_else(at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definition_feed, "READ", at_a_time)
    rows = Rows()
    for name in NAMES:
        for version in range(1, 61):
            rows.put(name, version, is_readable=True)
    feed = feed_of(rows)

    def reads() -> int:
        before = rows.reads
        feed.look()
        return rows.reads - before

    assert (reads(), reads()) == (180, 0)
    assert feed.pipelines == dict.fromkeys(NAMES, tuple(range(1, 61)))
    rows.put("orders", 61, is_readable=True)
    assert (reads(), reads()) == (1, 0)
    rows.put("clicks", 61, is_readable=False)
    assert (reads(), reads()) == (1, 0)
    assert list(feed.waiting) == ["clicks"]
    assert feed.pipelines.keys() == {"orders", "mails"}
    rows.put("clicks", 61, is_readable=True)
    assert (reads(), reads()) == (61, 0)
    assert not feed.waiting


def test_a_definition_that_is_stored_again_ends_the_waiting_and_the_unreadable_one_stays_named() -> None:
    rows = Rows()
    rows.put("orders", 1, is_readable=True)
    rows.put("orders", 2, is_readable=False)
    feed = feed_of(rows)
    feed.look()
    assert list(feed.waiting) == ["orders"]
    rows.put("orders", 3, is_readable=True)
    assert feed.look()
    assert feed.pipelines == {"orders": (1, 3)}
    assert not feed.waiting
    assert [row.place for row in feed.unreadable] == ["definition orders/2"]
