"""Jars: what set-up makes of missing, damaged and unexpected ones, for which a function that copies stands in for Ivy;
what Ivy itself makes of a repository's checksums."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

import pytest

from lagloss.errors import EXIT_UNREACHABLE, EXIT_USAGE
from lagloss_server.base.errors import JarMismatch, JarsMissing, JarsNotFetched
from lagloss_server.ops import jars

ROOT = Path(__file__).parents[4]
LOCKS = (ROOT / "lagloss_server" / "ops" / "jars.lock", *(ROOT / "tests" / "support").glob("*_jars.lock"))
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
    for jar_set in jars.SETS:
        assert set(jar_set.coordinates) <= {jar.coordinates for jar in jar_set.locked()}


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_a_lock_has_the_coordinates_of_each_jar(path: Path) -> None:
    for jar in jars.read_lock(path.read_text()):
        group, name, version = jar.coordinates.split(":")
        assert re.fullmatch(r"[\w.-]+", group)
        assert jar.name == f"{name}-{version}.jar"
        assert re.fullmatch("[0-9a-f]{64}", jar.sha256)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a repository that Ivy reads, with org.example:thing:1.2 and its checksums."""
    folder = tmp_path / "repository" / "org" / "example" / "thing" / "1.2"
    folder.mkdir(parents=True)
    fields = {"modelVersion": "4.0.0", "groupId": "org.example", "artifactId": "thing", "version": "1.2"}
    pom = f"<project>{''.join(f'<{name}>{value}</{name}>' for name, value in fields.items())}</project>"
    for suffix, content in (("pom", pom.encode()), ("jar", b"a jar")):
        (folder / f"thing-1.2.{suffix}").write_bytes(content)
        (folder / f"thing-1.2.{suffix}.sha1").write_text(hashlib.sha1(content).hexdigest())
    settings = tmp_path / "ivysettings.xml"
    root = (tmp_path / "repository").as_uri()
    settings.write_text(
        '<ivysettings><settings defaultResolver="local"/><resolvers>'
        f'<ibiblio name="local" m2compatible="true" root="{root}/"/></resolvers></ivysettings>'
    )
    monkeypatch.setenv("LAGLOSS_IVY_SETTINGS", str(settings))
    monkeypatch.setenv("LAGLOSS_JARS_DIR", str(tmp_path))
    return folder


THING = jars.JarSet("things", ("org.example:thing:1.2",), transitive=True)


def test_what_is_locked_has_agreed_with_the_published_checksum(repository: Path, tmp_path: Path) -> None:
    jars.write_lock(tmp_path / "jars.lock", (THING,))
    sha256 = hashlib.sha256(b"a jar").hexdigest()
    (jar,) = jars.read_lock((tmp_path / "jars.lock").read_text())
    assert jar == jars.LockedJar("things", "thing-1.2.jar", sha256, "org.example:thing:1.2")


@pytest.mark.parametrize("published", [None, "0" * 40], ids=["none", "another"])
def test_a_jar_without_its_published_checksum_is_not_locked(
    repository: Path, tmp_path: Path, published: str | None
) -> None:
    checksum = repository / "thing-1.2.jar.sha1"
    checksum.unlink() if published is None else checksum.write_text(published)
    with pytest.raises(JarsNotFetched, match="no checksum" if published is None else "FAILED"):
        jars.write_lock(tmp_path / "jars.lock", (THING,))
    assert not (tmp_path / "jars.lock").exists()


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
