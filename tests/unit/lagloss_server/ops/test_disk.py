"""What is said of a disk that a server cannot write to: never that its data should go."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss.errors import LaglossError
from lagloss_server.base.errors import AlreadyRunning, DiskFull, DiskUnwritable, ServerNotReady, StaleDataDirectory
from lagloss_server.base.settings import Settings
from lagloss_server.ops import disk, doctor
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.embedded.kafka_node import BrokerNode
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.ops.supervisor import Service
from lagloss_server.ops.up import SERVER_RETRY_S, ServiceStack, progress_lines

KAFKA_WORDS = (
    "[2026-11-26 10:00:00,1] ERROR Error while appending records to lagloss.beacons-0 in dir {dir} "
    "(org.apache.kafka.storage.internals.log.LogDirFailureChannel)\njava.io.IOException: {reason}\n"
    "[2026-11-26 10:00:01,2] ERROR Shutdown broker because all log dirs in {dir} have failed\n"
    "[2026-11-26 10:00:01,3] ERROR Exiting Kafka due to fatal exception: CorruptRecordException\n"
)
POSTGRES_WORDS = (
    '2026-11-26 10:00:00 UTC [1] PANIC:  could not write to file "pg_wal/xlogtemp.1": {reason}\n'
    "2026-11-26 10:00:00 UTC [1] LOG:  startup process (PID 1) was terminated by signal 6: Aborted\n"
    "2026-11-26 10:00:00 UTC [1] LOG:  aborting startup due to startup process failure\n"
    "2026-11-26 10:00:00 UTC [1] FATAL:  database system is shut down\n"
)
OTHER_WORDS = (
    *POSTGRES_WORDS.splitlines()[1:],
    *KAFKA_WORDS.splitlines()[2:],
    "ERROR Corrupt index found, index file (/x) has non-zero size but the last offset is 0",
    'FATAL:  could not read file "global/pg_control": read 4 of 296',
    "WARN Failed to bind to port 1: Permission denied",
    "",
)
REASONS = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES]


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What the operating system says of every disk; a test changes it."""
    found = {"f_blocks": 1000, "f_bfree": 500, "f_bavail": 500, "f_frsize": 1 << 20}
    found |= {"f_files": 1000, "f_favail": 500, "f_flag": 0}
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**found))
    return found


def last_words(server: str, folder: Path, log: str) -> Exception:
    """The error that a server's end at its start becomes."""
    folder.mkdir(parents=True, exist_ok=True)
    if server == "Kafka":
        node = BrokerNode(1, folder, 1, 2)
        node.log_path.write_text(log)
        return EmbeddedKafka(folder)._startup_error(node)
    postgres = EmbeddedPostgres(folder)
    postgres.log_path.write_text(log)
    return postgres._startup_error(folder)


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize(("server", "words"), [("Kafka", KAFKA_WORDS), ("PostgreSQL", POSTGRES_WORDS)])
def test_no_servers_last_words_about_its_disk_become_the_advice_to_delete(
    tmp_path: Path, server: str, words: str, reason: int
) -> None:
    error = last_words(server, tmp_path, words.format(dir=tmp_path, reason=os.strerror(reason)))
    assert isinstance(error, DiskFull if reason in (errno.ENOSPC, errno.EDQUOT) else DiskUnwritable)
    assert os.strerror(reason) in str(error)
    assert str(tmp_path) in str(error)
    assert "delete" not in str(error)


@pytest.fixture(scope="module")
def module_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@given(
    server=st.sampled_from(["Kafka", "PostgreSQL"]),
    before=st.lists(st.sampled_from(OTHER_WORDS)),
    after=st.lists(st.sampled_from(OTHER_WORDS)),
    reason=st.sampled_from(REASONS),
)
def test_whatever_else_a_server_says_its_disk_comes_first(
    module_dir: Path, server: str, before: list[str], after: list[str], reason: int
) -> None:
    log = "\n".join([*before, f'FATAL:  could not write to file "x": {os.strerror(reason)}', *after])
    assert "delete" not in str(last_words(server, module_dir, log))


@pytest.mark.parametrize(("server", "words"), [("Kafka", KAFKA_WORDS), ("PostgreSQL", POSTGRES_WORDS)])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"f_bavail": 0}, "is full: expected at least 32 MB of free space, found 0 MB"),
        ({"f_bavail": 20}, "is full: expected at least 32 MB of free space, found 20 MB"),
        ({"f_favail": 3}, "is full: no inodes left"),
        ({"f_flag": os.ST_RDONLY}, "Cannot write to {dir}: Read-only file system"),
    ],
)
def test_the_disk_is_looked_at_before_the_words_are_believed(
    tmp_path: Path, room: dict[str, int], server: str, words: str, change: dict[str, int], said: str
) -> None:
    room |= change
    error = last_words(server, tmp_path, words.format(dir=tmp_path, reason="Corrupt"))
    assert said.format(dir=tmp_path) in str(error)
    assert "delete" not in str(error)


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        ('FATAL:  could not read file "global/pg_control": read 4 of 296', StaleDataDirectory),
        ('FATAL:  data directory "/x" has invalid permissions\nDETAIL: should be u=rwx (0700)', DiskUnwritable),
        ('FATAL:  data directory "/x" has wrong ownership', DiskUnwritable),
        ("FATAL:  could not map anonymous shared memory: Cannot allocate memory", ServerNotReady),
        ("FATAL:  could not open file: Too many open files in system", ServerNotReady),
        ("FATAL:  pre-existing shared memory block (key 1, ID 2) is still in use", AlreadyRunning),
        ('LOG:  could not bind IPv4 address "127.0.0.1": Permission denied\nFATAL: x', StaleDataDirectory),
    ],
)
def test_only_damage_counts_as_damage(tmp_path: Path, log: str, kind: type[LaglossError]) -> None:
    assert type(last_words("PostgreSQL", tmp_path, log)) is kind


@given(
    blocks=st.integers(0, 1 << 40),
    reserved=st.integers(0, 1 << 20),
    available=st.integers(0, 1 << 40),
    files=st.integers(0, 1 << 40),
    free_files=st.integers(0, 1 << 40),
)
def test_a_disk_of_any_size_has_a_share_and_is_full_or_not(
    blocks: int, reserved: int, available: int, files: int, free_files: int
) -> None:
    available, free_files = min(available, blocks), min(free_files, files)
    free = min(blocks, available + reserved)
    facts = {"f_blocks": blocks, "f_bfree": free, "f_bavail": available, "f_frsize": 4096}
    facts |= {"f_files": files, "f_favail": free_files, "f_flag": 0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "statvfs", lambda _: SimpleNamespace(**facts))
        found = disk.Room.of(Path("/"))
    assert 0 <= found.free_share <= 1
    is_full = available * 4096 < disk.FULL_MB * 1_000_000 or (files > 0 and free_files < disk.FULL_INODES)
    assert isinstance(found.problem, DiskFull) == is_full
    assert (found.warning is not None) == (found.free_share < disk.LOW_SHARE)


class FakeServer:
    """Stands for an embedded server: it dies, and starts only once `error` is None."""

    name = "Kafka"

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.processes: list[Any] = [SimpleNamespace(poll=lambda: None)]
        self.log_path = Path("server.log")
        self.starts = 0

    def die(self, error: Exception) -> None:
        self.error, self.processes = error, [SimpleNamespace(poll=lambda: 1)]

    def stop(self) -> None:
        self.processes = []

    def start(self) -> None:
        self.starts += 1
        if self.error is not None:
            raise self.error
        self.processes = [SimpleNamespace(poll=lambda: None)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def pass_time(seconds: float) -> None:
        now[0] += seconds

    return pass_time


@pytest.mark.parametrize("error", [DiskFull, DiskUnwritable])
def test_a_server_whose_disk_is_full_is_tried_each_30_s_until_it_starts(
    tmp_path: Path, clock: Callable[[float], None], error: type[LaglossError]
) -> None:
    said: list[str] = []
    stack, server = ServiceStack(Settings(data_dir=tmp_path), said.append), FakeServer()
    stack._kafka = server  # type: ignore[assignment]
    server.die(error(path=tmp_path, detail="0 MB"))
    for _ in range(3):
        for _ in range(5):
            stack.tend()
        clock(SERVER_RETRY_S)
    assert server.starts == 3
    assert sum("0 MB" in line and "The rest keeps running" in line for line in said) == 3
    server.error = None
    stack.tend()
    stack.tend()
    assert (server.starts, said[-1]) == (4, "Kafka restarted")


def test_any_other_end_of_a_server_ends_up(tmp_path: Path) -> None:
    stack, server = ServiceStack(Settings(data_dir=tmp_path), print), FakeServer()
    stack._postgres = server  # type: ignore[assignment]
    server.die(ServerNotReady(server="x", detail="y", log="z"))
    with pytest.raises(ServerNotReady):
        stack.tend()


def test_up_warns_once_a_minute_of_a_disk_that_is_nearly_full(
    tmp_path: Path, room: dict[str, int], clock: Callable[[float], None]
) -> None:
    said: list[str] = []
    stack = ServiceStack(Settings(data_dir=tmp_path), said.append)
    stack.tend()
    assert said == []
    room |= {"f_bfree": 49, "f_bavail": 49}
    clock(60)
    for _ in range(3):
        stack.tend()
    assert said == [f"warning: the disk of {tmp_path} has 4.9% of its space or inodes free (51 MB)"]


@pytest.mark.parametrize("change", [{"f_bavail": 0}, {"f_favail": 0}, {"f_flag": os.ST_RDONLY}])
def test_up_says_at_its_first_start_that_the_disk_is_full(
    tmp_path: Path, room: dict[str, int], change: dict[str, int]
) -> None:
    room |= change
    with pytest.raises((DiskFull, DiskUnwritable)) as raised, ServiceStack(Settings(data_dir=tmp_path), print):
        pass
    assert str(tmp_path) in str(raised.value)


def test_up_goes_on_with_what_it_has_below_what_a_first_start_needs(tmp_path: Path, room: dict[str, int]) -> None:
    room |= {"f_bfree": 200, "f_bavail": 200}
    stack = ServiceStack(Settings(data_dir=tmp_path), print)
    with pytest.raises(LaglossError, match=r"Expected 0\.5 GB of free disk space"):
        stack._check_machine()
    (tmp_path / "ports.json").write_text("{}")
    stack._check_machine()


@pytest.mark.parametrize(
    ("change", "verdict", "found"),
    [
        ({}, "ok", "524 MB free in"),
        ({"f_bfree": 700, "f_bavail": 700, "f_favail": 30, "f_files": 1000}, "fail", "no inodes left"),
        ({"f_blocks": 100_000, "f_bfree": 900, "f_bavail": 900}, "warn", "has 0.9% of its space"),
        ({"f_bavail": 3}, "fail", "is full: expected at least 32 MB of free space, found 3 MB"),
    ],
)
def test_doctor_sees_a_disk_that_is_full_or_nearly(
    tmp_path: Path, room: dict[str, int], change: dict[str, int], verdict: str, found: str
) -> None:
    room |= change
    check = doctor.check_space(Settings(data_dir=tmp_path))[1]
    assert (check.name, check.verdict) == ("disk", verdict)
    assert found in check.finding
    assert "delete" not in check.what_to_do


def test_on_a_full_disk_doctor_does_not_send_the_reader_to_the_servers(tmp_path: Path, room: dict[str, int]) -> None:
    room |= {"f_bavail": 0}
    checks = {check.name: check for check in doctor.run(Settings(data_dir=tmp_path, kafka_bootstrap="127.0.0.1:1"))}
    assert checks["Kafka"].what_to_do.startswith("fix the disk first")


def test_a_small_file_keeps_what_it_had_if_the_disk_takes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cluster.id"
    disk.write_whole(path, "first")
    monkeypatch.setattr(Path, "write_text", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(DiskFull), disk.naming(tmp_path):
        disk.write_whole(path, "second")
    assert path.read_bytes() == b"first"


def test_progress_that_cannot_be_written_ends_nothing() -> None:
    class Full:
        def print(self, *_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    with progress_lines(Full()) as say:  # type: ignore[arg-type]
        say("a line")


def test_what_a_service_says_at_the_start_is_not_believed_on_a_full_disk(
    tmp_path: Path, room: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: ServiceStack) -> None:
        room["f_bavail"] = 1
        raise ServerNotReady(server="aggregator", detail="it died 3 times while starting", log=tmp_path / "log")

    monkeypatch.setattr(ServiceStack, "_start_servers", fail)
    with (
        pytest.raises(DiskFull, match=f"The disk of {tmp_path} is full"),
        ServiceStack(Settings(data_dir=tmp_path), print),
    ):
        pass


def test_a_service_whose_log_cannot_be_made_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Callable[[float], None]
) -> None:
    said: list[str] = []
    service = Service("web", "http.server", tmp_path / "log", {})

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("lagloss_server.ops.supervisor.spawn", refuse)
    for _ in range(3):
        service.tend(said.append)
        clock(2)
    assert [line.partition(" (")[0] for line in said] == ["web died", "cannot restart web"]
    monkeypatch.setattr("lagloss_server.ops.supervisor.spawn", lambda *_, **__: SimpleNamespace(poll=lambda: None))
    clock(30)
    service.tend(said.append)
    assert said[-1] == "web restarted"
