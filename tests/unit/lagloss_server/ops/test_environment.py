"""Environments of servers: their locks, and when they are made anew. tests/integration starts what is in them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from lagloss_server.base.errors import ServerNotInstalled
from lagloss_server.ops.embedded.environment import LockedEnvironment
from lagloss_server.ops.embedded.localstack import ENVIRONMENT as LOCALSTACK
from pipeline_under_test.batch.airflow import ENVIRONMENT as AIRFLOW


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LockedEnvironment:
    monkeypatch.setenv("LAGLOSS_SOME_DIR", str(tmp_path / "environment"))
    lock = tmp_path / "lock"
    lock.write_text("no-such-package==1 --hash=sha256:" + 64 * "0" + "\n")
    return LockedEnvironment("Some", lock, "LAGLOSS_SOME_DIR")


@pytest.mark.parametrize("locked", [LOCALSTACK, AIRFLOW], ids=lambda locked: locked.server)
def test_a_lock_holds_hashes_of_every_package_and_no_address(locked: LockedEnvironment) -> None:
    text = locked.lock.read_text()
    pins = re.split(r"\n(?=[a-z0-9])", text, flags=re.IGNORECASE)[1:]
    assert len(pins) > 100
    assert all("--hash=sha256:" in pin for pin in pins)
    assert not re.search(r"https?:|--index|--find-links", text)


def test_an_environment_of_this_lock_is_taken_as_it_is(
    made: LockedEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.folder.mkdir()
    (made.folder / ".complete").write_text(hashlib.sha256(made.lock.read_bytes()).hexdigest())
    monkeypatch.setattr("sys.executable", "/nonexistent")
    assert made.ensure() == made.folder / "bin" / "python"


def test_one_of_another_lock_is_made_anew_and_what_cannot_be_fetched_says_so(
    made: LockedEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.folder.mkdir()
    (made.folder / ".complete").write_text("of another")
    for name, value in {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ServerNotInstalled, match="no-such-package"):
        made.ensure()
    assert not (made.folder / ".complete").exists()


def test_both_sides_of_the_sdk_have_the_same_versions() -> None:
    root = Path(__file__).parents[4]
    ours = set(
        re.findall(r"^(?:confluent-kafka|fastavro|numpy|xxhash)==[^ ]+", (root / "requirements.txt").read_text(), re.M)
    )
    assert ours <= set(re.findall(r"^[\w-]+==[^ ]+", AIRFLOW.lock.read_text(), re.M))
