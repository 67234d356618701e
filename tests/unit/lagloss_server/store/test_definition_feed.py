"""Definitions as they change under a process: what a look reads of the changes is what a new process would read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.model.definition import Definition, StoredPipeline
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
        self.deleted: set[str] = set()
        self.reads = 0

    def count_changes(self) -> int:
        return len(self.rows) + len(self.deleted)

    def names(self) -> list[str]:
        return sorted({name for name, _ in self.rows} - self.deleted)

    def versions(self, known: Mapping[str, int]) -> ReadRows[StoredPipeline]:
        names = self.names()
        return self.versions_at([key for key in sorted(self.rows) if key[0] in names and key[1] > known.get(key[0], 0)])

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
        step = data.draw(st.sampled_from(["store", "store unreadable", "mend", "remove", "delete"]))
        unreadable = [key for key, is_good in rows.rows.items() if not is_good]
        if step.startswith("store"):  # which also brings a deleted pipeline back
            rows.rows[name, newest + 1] = step == "store"
            if name in rows.deleted:  # its version stays marked, so the count goes up by one
                rows.deleted.discard(name)
                rows.deleted.add(f"{name}/{newest}")
        elif step == "delete" and newest:
            rows.deleted.add(name)
        elif unreadable and step == "mend":
            rows.rows[data.draw(st.sampled_from(unreadable))] = True
        elif unreadable and step == "remove":
            del rows.rows[data.draw(st.sampled_from(unreadable))]
        if data.draw(st.booleans()):
            feed.look()
            fresh = feed_of(rows)
            fresh.look()
            assert state(feed) == state(fresh)


def test_a_look_reads_what_is_new_and_what_is_set_aside_and_nothing_else() -> None:
    rows = Rows()
    rows.rows = {(name, version): True for name in NAMES for version in range(1, 61)}
    feed = feed_of(rows)
    assert feed.look()
    assert rows.reads == 180
    assert not feed.look()
    assert rows.reads == 180
    rows.rows["orders", 61] = True
    assert feed.look()
    assert rows.reads == 181
    rows.rows["clicks", 61] = False
    assert feed.look()
    assert rows.reads == 182
    assert list(feed.waiting) == ["clicks"]
    assert feed.pipelines.keys() == {"orders", "mails"}
    assert not feed.look()
    assert rows.reads == 183


def test_a_definition_that_is_stored_again_ends_the_waiting_and_the_unreadable_one_stays_named() -> None:
    rows = Rows()
    rows.rows = {("orders", 1): True, ("orders", 2): False}
    feed = feed_of(rows)
    feed.look()
    assert list(feed.waiting) == ["orders"]
    rows.rows["orders", 3] = True
    assert feed.look()
    assert feed.pipelines == {"orders": (1, 3)}
    assert not feed.waiting
    assert [row.place for row in feed.unreadable] == ["definition orders/2"]


def test_a_row_that_is_unreadable_for_another_reason_is_named_with_that() -> None:
    first = UnreadableRow("definition", "orders", "3", "no")
    assert first != replace(first, why="neither")
