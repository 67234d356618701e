"""Jars: what set-up makes of missing, damaged and unexpected ones. Ivy is stood in for by a function that copies."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from lagloss.errors import EXIT_UNREACHABLE, EXIT_USAGE
from lagloss_server.base.errors import JarMismatch, JarsMissing, JarsNotFetched
from lagloss_server.ops import jars

GOOD = {"a-1.jar": b"jar a", "b-2.jar": b"jar b"}
LOCKED = [jars.LockedJar("spark", name, hashlib.sha256(content).hexdigest()) for name, content in GOOD.items()]


class Registry:
    """Serves `files`; counts how often it was asked."""

    def __init__(self) -> None:
        self.files = dict(GOOD)
        self.asked = 0

    def fetch(self, jar_set: jars.JarSet, cache: Path, scratch: Path, expected: int, report: jars.Report) -> Path:
        self.asked += 1
        for name, content in self.files.items():
            (scratch / name).write_bytes(content)
        return scratch


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAGLOSS_JARS_DIR", str(tmp_path / "jars"))
    monkeypatch.setattr(jars, "read_lock", lambda: LOCKED)
    return tmp_path / "jars"


@pytest.fixture
def registry(root: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    registry = Registry()
    monkeypatch.setattr(jars, "_fetch", registry.fetch)
    return registry


def test_jars_are_fetched_once(root: Path, registry: Registry) -> None:
    jars.ensure()
    jars.ensure()
    assert [path.read_bytes() for path in jars.spark_jars()] == list(GOOD.values())
    assert registry.asked == 1


def test_a_half_downloaded_jar_is_replaced_and_told(root: Path, registry: Registry) -> None:
    jars.ensure()
    (root / "spark" / "b-2.jar").write_bytes(b"jar")
    told: list[str] = []
    jars.ensure(lambda line, done, total: told.append(line))
    assert (root / "spark" / "b-2.jar").read_bytes() == b"jar b"
    assert told == ["b-2.jar is damaged, possibly an interrupted download: downloading it again"]


def test_a_jar_that_is_not_the_locked_one_is_refused_and_not_kept(root: Path, registry: Registry) -> None:
    registry.files["b-2.jar"] = b"something else"
    with pytest.raises(JarMismatch, match=r"b-2\.jar has SHA-256 .* expects") as caught:
        jars.ensure()
    assert caught.value.exit_code == EXIT_USAGE
    assert not (root / "spark" / "b-2.jar").exists()
    with pytest.raises(JarsMissing, match="make setup"):
        jars.spark_jars()


def test_a_jar_the_registry_does_not_give_is_named(root: Path, registry: Registry) -> None:
    del registry.files["a-1.jar"]
    with pytest.raises(JarsNotFetched, match=r"a-1\.jar.*make setup") as caught:
        jars.ensure()
    assert caught.value.exit_code == EXIT_UNREACHABLE


def test_a_fetch_that_fails_midway_leaves_no_jar_half_in_place(
    root: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Path:
        raise JarsNotFetched(detail="connection reset", log="fetch.log")

    monkeypatch.setattr(jars, "_fetch", fail)
    with pytest.raises(JarsNotFetched):
        jars.ensure()
    assert [path.name for path in root.rglob("*") if path.is_file()] == [".lock"]


def test_the_committed_lock_names_every_jar_that_was_asked_for() -> None:
    locked = {jar.name for jar in jars.read_lock()}
    for jar_set in jars.SETS:
        for coordinate in jar_set.coordinates:
            _, name, version = coordinate.split(":")
            assert f"{name}-{version}.jar" in locked
    assert all(len(jar.sha256) == 64 for jar in jars.read_lock())


def test_a_folder_of_jars_that_another_user_filled_is_used_as_it_is(
    root: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars.ensure()

    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(jars, "_locked", denied)  # root in CI may write anywhere
    jars.ensure()
    (root / "spark" / "b-2.jar").write_bytes(b"jar")
    with pytest.raises(JarsNotFetched, match="cannot write"):
        jars.ensure()


def test_one_set_may_be_fetched_alone(root: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = jars.LockedJar("broker", "a-1.jar", LOCKED[0].sha256)
    monkeypatch.setattr(jars, "read_lock", lambda: [*LOCKED, broker])
    monkeypatch.setattr(sys, "argv", ["jars", "spark"])
    assert jars.main() == 0
    assert len(jars.spark_jars()) == len(GOOD)
    assert not (root / "broker").exists()
    monkeypatch.setattr(sys, "argv", ["jars"])
    assert jars.main() == 0
    assert [path.name for path in jars.broker_jars()] == ["a-1.jar"]
