"""The README's blocks of commands as a newcomer types them: in order, in a copy of the tree in a folder that only its
user can enter, with an empty HOME.

They run as written, by these rules: `sudo apt-get` is run by root without sudo, and answers its own questions;
`broker:9092` is a broker with two topics and two groups; a command that runs for ever is ended by Ctrl-C once what the
README promises of it is seen, or keeps its terminal, and the next block is typed into a second one. pip takes the
versions of the lock, and what it has fetched before."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from markdown_it import MarkdownIt

from lagloss_server.ops import jars as lagloss_jars
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from tests.acceptance.test_front_door import LEFT_OUT, ROOT
from tests.conftest import new_folder
from tests.support.closers import wait_until
from tests.support.kafka_log import PATIENCE

BLOCK_S = 400 * PATIENCE
SUDO = """#!/bin/sh
[ "$1" = apt-get ] && [ "$2" = install ] || { echo "sudo: unexpected: $*" >&2; exit 1; }
shift 2
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
apt-get update -qq && exec apt-get install -y -qq -o DPkg::Lock::Timeout=120 "$@"
"""
PASSED = "PIP_.*|SSL_.*|REQUESTS_CA_BUNDLE|(HTTPS?|NO)_PROXY|(https?|no)_proxy|JAVA_TOOL_OPTIONS|LANG"
"""What a command has from here, by name: how downloads leave this network."""
RECORDS, LOST = 300, 3
EVENTS_AGO_S = 300


@dataclass
class Terminal:
    """A shell in the tree; `log` is what it shows. It ends at the first command that fails."""

    folder: Path
    name: str
    env: dict[str, str]
    blocks: int = field(default=0, init=False)
    shell: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        with self.log.open("w") as log:
            self.shell = subprocess.Popen(
                ["bash", "-e"],
                cwd=self.folder / "tree",
                env=self.env,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def text(self) -> str:
        return self.log.read_text()

    def type(self, block: str) -> str:
        """Type a block; return what is shown once all of it has run."""
        self.blocks += 1
        script = self.folder / f"{self.name}-{self.blocks}.sh"
        script.write_text(block)
        end = f"-- end of block {self.blocks}"
        assert self.shell.stdin is not None
        self.shell.stdin.write(f". {script} < /dev/null\necho '{end}'\n")
        self.shell.stdin.flush()
        return end

    def wait_for(self, text: str, timeout_s: float = BLOCK_S) -> None:
        deadline = time.monotonic() + timeout_s
        while text not in self.text:
            assert self.shell.poll() is None, self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.2)

    def press_ctrl_c(self) -> None:
        """Interrupt what runs in the foreground; nothing if the shell itself waits."""
        for process in psutil.Process(self.shell.pid).children():
            process.send_signal(signal.SIGINT)

    def close(self) -> None:
        if self.shell.poll() is None:
            self.press_ctrl_c()
            assert self.shell.stdin is not None
            self.shell.stdin.close()
            try:
                self.shell.wait(120)
            except subprocess.TimeoutExpired:
                os.killpg(self.shell.pid, signal.SIGKILL)


@dataclass
class Newcomer:
    """Who follows the README."""

    folder: Path
    env: dict[str, str]
    terminals: list[Terminal] = field(default_factory=list)

    def open_terminal(self) -> Terminal:
        self.terminals.append(Terminal(self.folder, f"terminal-{len(self.terminals) + 1}", self.env))
        return self.terminals[-1]

    def lagloss(self, *words: str) -> str:
        """What a command shows beside the README's."""
        command = [str(self.folder / "home" / "lagloss" / "bin" / "lagloss"), *words]
        done = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def lost(self, pipeline: str) -> int:
        return sum(window["lost"]["min"] for window in self.closed(pipeline))

    def closed(self, pipeline: str) -> list[dict[str, Any]]:
        windows = json.loads(self.lagloss("windows", pipeline, "--from", "-65m", "--json"))
        return [window for window in windows if window["state"] != "open"]


@pytest.fixture
def newcomer() -> Iterator[Newcomer]:
    folder = new_folder()
    folder.chmod(0o700)
    made = Newcomer(folder, _environment(folder))
    shutil.copytree(ROOT, folder / "tree", ignore=shutil.ignore_patterns(*LEFT_OUT))
    try:
        yield made
    finally:
        for terminal in reversed(made.terminals):
            terminal.close()
        for postgres in folder.glob("home/.local/share/lagloss/**/postgres"):
            EmbeddedPostgres.remove(postgres)
        shutil.rmtree(folder)


def _environment(folder: Path) -> dict[str, str]:
    for name in ("home", "bin"):
        (folder / name).mkdir()
    pins = re.findall(r"^(\w[^\s=]*==[^\\\n]+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    (folder / "constraints.txt").write_text("\n".join(pins))
    if os.geteuid() == 0:
        (folder / "bin" / "sudo").write_text(SUDO)
        (folder / "bin" / "sudo").chmod(0o755)
    cache = subprocess.run([sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=True)
    return {
        **{name: value for name, value in os.environ.items() if re.fullmatch(PASSED, name)},
        "HOME": str(folder / "home"),
        "PATH": f"{folder / 'bin'}:{Path(sys._base_executable).parent}:{os.environ['PATH']}",  # type: ignore[attr-defined]
        "PIP_CONSTRAINT": str(folder / "constraints.txt"),
        "PIP_CACHE_DIR": cache.stdout.strip(),
        "PIP_NO_COMPILE": "1",
        "LAGLOSS_JARS_DIR": str(lagloss_jars.jars_dir().absolute()),
        "PYTHONUNBUFFERED": "1",
    }


def blocks_of(page: str) -> list[str]:
    """The page's blocks of commands."""
    return [token.content for token in MarkdownIt().parse(page) if token.type == "fence" and token.info == "sh"]


def _orders(bootstrap: str) -> None:
    """Two topics and the groups that have read them; a few orders never come out of the first group."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in ("orders", "enriched")]).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    began_ms = time.time_ns() // 1_000_000 - EVENTS_AGO_S * 1_000
    for number in range(RECORDS):
        at_ms = began_ms + number * 100
        document = json.dumps({"order_id": f"o-{number:05}", "created_at": at_ms})
        producer.produce("orders", document, timestamp=at_ms)
        if number % (RECORDS // LOST):
            producer.produce("enriched", document, timestamp=at_ms + 50)
    assert producer.flush(30) == 0
    for group, topic, end in (("enrich", "orders", RECORDS), ("sink", "enriched", RECORDS - LOST)):
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
        consumer.commit(offsets=[TopicPartition(topic, 0, end)], asynchronous=False)
        consumer.close()


@pytest.mark.slow
@pytest.mark.timeout(1_200 * PATIENCE)
@pytest.mark.skipif(os.geteuid() != 0 and shutil.which("sudo") is None, reason="only root installs packages")
def test_each_command_of_the_readme_runs_as_it_is_written(newcomer: Newcomer, jars: None) -> None:
    blocks = blocks_of((ROOT / "README.md").read_text())
    seen = []
    with EmbeddedKafka(newcomer.folder / "kafka") as kafka:
        terminal = newcomer.open_terminal()
        for block in blocks:
            last = block.rstrip().splitlines()[-1]
            end = terminal.type(block.replace("broker:9092", kafka.bootstrap))
            seen.append(last)
            if last == "lagloss demo":
                terminal.wait_for("pipeline: load")
                _look_at_demo(newcomer)
                terminal.press_ctrl_c()
            elif last == "lagloss up":
                terminal.wait_for("ready; Ctrl-C")
                _orders(kafka.bootstrap)
                terminal = newcomer.open_terminal()
                continue
            terminal.wait_for(end)
        assert {"lagloss demo", "lagloss up"} <= set(seen)
        wait_until(lambda: newcomer.lost("orders") == LOST, 60, "for the lost orders")
        groups = {group["group"] for group in json.loads(newcomer.lagloss("groups", "--json"))}
        assert {"enrich", "sink"} <= groups
        assert "stopped" in newcomer.terminals[0].text
        assert not (newcomer.folder / "home" / "lagloss" / "bin" / "pipeline").exists()
        for terminal in reversed(newcomer.terminals):
            terminal.close()


def _look_at_demo(newcomer: Newcomer) -> None:
    """What the README promises of it; and its files are for nobody else."""
    assert " fail " not in newcomer.lagloss("doctor")
    data_dir = newcomer.folder / "home" / ".local" / "share" / "lagloss" / "demo"
    made = [*data_dir.iterdir(), *(data_dir / "kafka").rglob("*.log"), *(data_dir / "logs").iterdir()]
    assert [path for path in made if not path.is_symlink() and path.stat().st_mode & 0o066] == []
    wait_until(lambda: len(newcomer.closed("clicks")) > 50, 240, "for the past hour")
    newcomer.lagloss("report", "clicks", "--from", "-1h")
