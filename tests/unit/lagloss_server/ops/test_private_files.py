"""Which files of a data directory other users of the machine can read: none of lagloss's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lagloss_server.ops.private_files import OWNER_ONLY, close_folder, make_folder, umask
from lagloss_server.ops.processes import run

FILES = (
    "kafka/node-1/logs/lagloss.beacons-0/0.log",
    "logs/collector.log",
    "logs/collector.log.1",
    "postgres/port",
    "postgres/pgpass",
    "postgres/cluster/data/base/1",
    "spark/77/blockmgr/x",
    "spool/clicks/src/1.spool",
    "ports.json",
    "up.lock",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data directory which every user of the machine can read, as a copy can be."""
    data_dir = tmp_path / "data"
    for name in FILES:
        (data_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (data_dir / name).touch()
    for path in (data_dir, *data_dir.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return data_dir


def rights(path: Path) -> int:
    """What other users may do."""
    return path.stat().st_mode & 0o077


def test_what_other_users_can_read_is_closed_to_them(folder: Path) -> None:
    close_folder(folder, passable=False)
    below = {path for path in folder.rglob("*") if not path.is_relative_to(folder / "postgres" / "cluster")}
    assert {path for path in (folder, *below) if rights(path)} == set()
    assert rights(folder / "postgres" / "cluster") == 0o055  # whose rights PostgreSQL sees to itself


def test_a_server_of_another_user_can_still_pass_and_list_nothing(folder: Path) -> None:
    close_folder(folder, passable=True)
    assert (rights(folder), rights(folder / "postgres")) == (0o011, 0o011)
    assert {rights(folder / name) for name in FILES if "cluster" not in name} == {0}
    assert {rights(folder / name) for name in ("kafka", "logs", "spool", "spark")} == {0}
    folder.chmod(0o700)
    close_folder(folder, passable=True)
    assert rights(folder) == 0  # whose owner closed it keeps it so


@pytest.mark.parametrize("other", ["thesis.tex", "package.json", "poetry.lock"])
def test_a_folder_that_holds_other_things_keeps_its_rights_and_theirs(folder: Path, other: str) -> None:
    (folder / other).touch()
    (folder / other).chmod(0o644)
    close_folder(folder, passable=False)
    assert (rights(folder), rights(folder / other)) == (0o055, 0o044)
    assert {rights(folder / name) for name in ("kafka", "logs", "spool", "up.lock")} == {0}


def test_what_a_link_leads_to_keeps_its_rights(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    (elsewhere / "file").touch(0o644)
    (folder / "logs").rename(tmp_path / "moved")
    (folder / "logs").symlink_to(elsewhere)
    (folder / "kafka" / "link").symlink_to(elsewhere / "file")
    (folder / "endpoints.json").symlink_to(elsewhere / "gone")
    close_folder(folder, passable=False)
    assert (rights(elsewhere), rights(elsewhere / "file")) == (0o055, 0o044)


@pytest.mark.parametrize(("passable", "found"), [(False, 0), (True, 0o011)])
def test_a_new_folder_is_its_owners_whatever_the_umask_is(tmp_path: Path, passable: bool, found: int) -> None:
    with umask(0o022):
        make_folder(tmp_path / "a" / "b", passable=passable)
    assert (rights(tmp_path / "a"), rights(tmp_path / "a" / "b")) == (0o055, found)
    (tmp_path / "a").chmod(0o750)
    make_folder(tmp_path / "a", passable=passable)
    assert rights(tmp_path / "a") == 0o050  # was there


def test_children_make_their_files_by_the_same_umask_and_it_ends(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with umask(OWNER_ONLY) as callers:
            run(["mkdir", tmp_path / "made"])
            assert callers == 0o022
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    assert rights(tmp_path / "made") == 0
