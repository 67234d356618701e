"""What set-up says of a machine that cannot run lagloss, before it downloads anything."""

from __future__ import annotations

import ast
import importlib.util
import runpy
import shutil
import socket
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lagloss_server.base.errors import MachineTooSmall, PortInUse
from lagloss_server.base.settings import Settings
from lagloss_server.ops import machine
from lagloss_server.ops.up import ServiceStack

SCRIPT = Path(machine.__file__)


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def set_up(capsys: pytest.CaptureFixture[str], folder: Path) -> tuple[object, str]:
    """Run the check as set-up does; its exit code and what it prints."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(SCRIPT), str(folder)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(SCRIPT), run_name="__main__")
    return ended.value.code, capsys.readouterr().err


def test_a_machine_that_has_all_passes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert set_up(capsys, tmp_path) == (0, "")


def test_an_old_python_can_read_the_check() -> None:
    ast.parse(SCRIPT.read_text(), feature_version=(3, 6))


def test_an_old_python_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 18, "final", 0))
    monkeypatch.setattr(sys, "version", "3.9.18 (main)")
    code, said = set_up(capsys, tmp_path)
    assert code == 3
    assert "Expected Python 3.11 or newer, found 3.9.18" in said
    assert "make setup PYTHON=path" in said


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "Java 11 at"),
        ('java version "1.8.0_392"', "Java 8 at"),
        ("not a Java", "which cannot be run"),
    ],
)
def test_an_old_java_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, found: str
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    code, said = set_up(capsys, tmp_path)
    assert code == 3
    assert found in said
    assert "apt-get install default-jre-headless" in said


def test_a_full_disk_is_noticed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**10, 10**10 - 10**9, 10**9))
    code, said = set_up(capsys, tmp_path / "not" / "there" / "yet")
    assert code == 3
    assert f"Expected 3.5 GB of free disk space in {tmp_path}/not/there/yet, found 1.0" in said


def test_a_port_that_is_taken_is_noticed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("LAGLOSS_DASHBOARD_PORT", str(port))
        code, said = set_up(capsys, tmp_path)
        assert code == 3
        assert f"Port {port} (LAGLOSS_DASHBOARD_PORT) is used by another process" in said
        with (
            pytest.raises(PortInUse, match=f"the dashboard cannot listen on port {port}"),
            ServiceStack(Settings(data_dir=tmp_path), print),
        ):
            pass
    assert not (tmp_path / "kafka").exists()  # noticed before a server was started


@pytest.mark.parametrize(
    ("files", "found_mb"),
    [
        ({"/proc/meminfo": "MemTotal:        1004000 kB\nMemFree: 3 kB\n"}, 1004),
        ({"/proc/meminfo": "MemTotal: 24000000 kB\n", "/sys/fs/cgroup/memory.max": "1000000000\n"}, 1000),
        ({"/proc/meminfo": "MemTotal: 24000000 kB\n", "/sys/fs/cgroup/memory.max": "max\n"}, 24000),
        ({}, None),
    ],
)
def test_the_memory_of_a_machine_or_container_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], found_mb: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / Path(name).name).write_text(text)

    def opened(path: str) -> Any:
        return (tmp_path / Path(path).name).open()

    monkeypatch.setattr(machine, "open", opened, raising=False)
    assert machine.memory_mb() == found_mb


def test_too_little_memory_is_refused_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "memory_mb", lambda: 1004)
    with (
        pytest.raises(MachineTooSmall, match=r"Expected at least 3\.5 GB of memory, found 1\.0"),
        ServiceStack(Settings(data_dir=tmp_path), print),
    ):
        pass
    assert not (tmp_path / "kafka").exists()


def test_a_machine_without_java_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    code, said = set_up(capsys, tmp_path)
    assert code == 3
    assert "found none. Install it (Debian: apt-get install default-jre-headless)" in said


def test_a_python_without_its_venv_module_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Debian's python3 comes with venv and without ensurepip.
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ensurepip" else object())
    code, said = set_up(capsys, tmp_path)
    assert code == 3
    assert "Python's venv module is missing. Install it (Debian: apt-get install python3-venv)" in said
