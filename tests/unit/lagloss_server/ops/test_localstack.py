"""The environment of LocalStack: its lock, and when it is made anew. tests/integration starts what is in it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from lagloss_server.errors import LocalStackNotInstalled
from lagloss_server.ops.embedded import localstack


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAGLOSS_LOCALSTACK_DIR", str(tmp_path / "environment"))
    return tmp_path / "environment"


def test_the_lock_holds_hashes_of_every_package_and_no_address() -> None:
    text = localstack.LOCK.read_text()
    pins = re.split(r"\n(?=[a-z0-9])", text, flags=re.IGNORECASE)[1:]
    assert len(pins) > 100
    assert all("--hash=sha256:" in pin for pin in pins)
    assert not re.search(r"https?:|--index|--find-links", text)


def test_an_environment_of_this_lock_is_taken_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    (folder / ".complete").write_text(hashlib.sha256(localstack.LOCK.read_bytes()).hexdigest())
    monkeypatch.setattr(localstack.sys, "executable", "/nonexistent")
    assert localstack.ensure() == folder / "bin" / "python"


def test_one_of_another_lock_is_made_anew_and_what_cannot_be_fetched_says_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    (folder / ".complete").write_text("of another")
    lock = tmp_path / "lock"
    lock.write_text("no-such-package==1 --hash=sha256:" + 64 * "0" + "\n")
    monkeypatch.setattr(localstack, "LOCK", lock)
    for name, value in {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LocalStackNotInstalled, match="no-such-package"):
        localstack.ensure()
    assert not (folder / ".complete").exists()
