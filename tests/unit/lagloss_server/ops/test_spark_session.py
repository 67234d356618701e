"""How the aggregator's Spark is set up: whose word counts, what a cluster gets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest
from pyspark.find_spark_home import _find_spark_home

from aggregator.kernel.spark_reader import AGGREGATOR_JOB
from lagloss_server.ops import code_archive as shipping
from lagloss_server.ops.spark_session import claim_scratch, defaults_in, is_local, name_programs, session_conf


@pytest.fixture(autouse=True)
def connector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lagloss_server.ops.jars.spark_jars", lambda: [Path("connector.jar")])


def conf(master: str = "", driver_host: str = "", **submitted: str) -> dict[str, str]:
    told = {name.replace("_", "."): value for name, value in submitted.items()}
    return session_conf(AGGREGATOR_JOB, master, "2g", Path("scratch"), driver_host, told)


def test_spark_is_not_taken_from_the_folder_above_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("bin", "jars", "inner"):
        (tmp_path / folder).mkdir()
    (tmp_path / "bin" / "spark-submit").touch()
    monkeypatch.chdir(tmp_path / "inner")
    monkeypatch.setenv("SPARK_HOME", "")  # so that it is as it was after the test
    monkeypatch.delenv("SPARK_HOME")
    assert _find_spark_home() == str(tmp_path)  # which is what would run
    name_programs()
    assert _find_spark_home() == str(Path(pyspark.__file__).parent)


def test_a_given_master_wins_over_that_of_spark_submit() -> None:
    assert conf("local[3]", spark_master="spark://there:7077")["spark.master"] == "local[3]"
    assert conf(spark_master="spark://there:7077")["spark.master"] == "spark://there:7077"
    assert conf()["spark.master"] == "local[*]"


def test_spark_submits_other_settings_win_over_ours() -> None:
    found = conf(spark_driver_memory="7g", spark_app_name="mine")
    assert (found["spark.driver.memory"], found["spark.app.name"]) == ("7g", "mine")
    assert conf()["spark.driver.memory"] == "2g"


def test_only_a_cluster_is_told_where_the_driver_is_and_gets_its_code() -> None:
    assert conf("spark://there:7077")["spark.driver.host"] == socket.gethostname()
    found = conf("spark://there:7077", "10.0.0.7")
    assert (found["spark.driver.host"], found["spark.executorEnv.PYTHONPATH"]) == ("10.0.0.7", shipping.FOLDER)
    told = session_conf(
        AGGREGATOR_JOB, "spark://there:7077", "2g", Path(), "", {"spark.executorEnv.PYTHONPATH": "more"}
    )
    assert told["spark.executorEnv.PYTHONPATH"] == f"{shipping.FOLDER}:more"
    here = conf("local[2]", "10.0.0.7")
    assert (here["spark.driver.host"], "spark.executorEnv.PYTHONPATH" in here) == ("127.0.0.1", False)
    assert [is_local(master) for master in ("local", "local[*]", "local-cluster[2,1,1024]")] == [True, True, False]


@pytest.mark.parametrize("master", ["spark://there:7077", "k8s://https://there:6443", "yarn"])
def test_on_a_cluster_executors_come_and_go_with_the_tasks_so_that_a_stand_by_has_none(master: str) -> None:
    found = conf(master)
    assert found["spark.dynamicAllocation.enabled"] == "true"
    assert found["spark.executorEnv.PYTHONPATH"] == shipping.FOLDER
    assert not any(name.startswith("spark.dynamicAllocation") for name in conf("local[2]"))
    assert conf(master, spark_executor_cores="4")["spark.executor.cores"] == "4"


def test_a_file_of_sparks_defaults_is_read_as_spark_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "spark-defaults.conf"
    assert defaults_in(file) == {}
    file.write_text("# ours\n\nspark.executor.memory   2g\n  spark.a  -Dx=1 -Dy='2 3' \nspark.empty\n")
    assert defaults_in(file) == {"spark.executor.memory": "2g", "spark.a": "-Dx=1 -Dy='2 3'", "spark.empty": ""}


def test_the_archive_holds_what_a_task_needs(tmp_path: Path) -> None:
    with zipfile.ZipFile(shipping.pack(tmp_path)) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "unpacked")
    assert {
        "lagloss/wire/schemas/beacon_block.avsc",
        "lagloss_server/judging/facts.py",
        "aggregator/kernel/worker_daemon.py",
    } <= names
    assert not [name for name in names if "__pycache__" in name]
    found = subprocess.run(
        [sys.executable, "-c", "import aggregator.kernel.kernel, lagloss.wire; print(lagloss.wire.__file__)"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "unpacked")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert Path(found.stdout.strip()) == tmp_path / "unpacked" / "lagloss" / "wire" / "__init__.py"


def test_scratch_of_a_running_process_is_left_alone(tmp_path: Path) -> None:
    running, ended = tmp_path / str(os.getppid()), tmp_path / "blockmgr-of-long-ago"
    for folder in (running, ended, tmp_path / str(os.getpid()) / "leftover"):
        folder.mkdir(parents=True)
    mine = claim_scratch(tmp_path)
    assert (mine.parent, list(mine.iterdir())) == (tmp_path, [])
    assert (running.exists(), ended.exists()) == (True, False)
