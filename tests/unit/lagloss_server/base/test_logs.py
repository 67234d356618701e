"""What services log: one JSON object a line where it is asked for, and never a local variable."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SECRET = "hunter2-of-the-database"
SCRIPT = f"""
import logging, threading
import structlog
from lagloss_server.base import logs
from lagloss_server.base.settings import Settings

logs.configure(Settings())
log = structlog.get_logger("lagloss.x")
log.info("closed", windows=3, pipeline="clicks")
log.debug("not shown")

def connect():
    password = {SECRET!r}  # on a line that a traceback does not show
    url = "postgresql://u:" + password
    raise ConnectionError("refused")

try:
    connect()
except ConnectionError as error:
    log.warning("away", exc_info=error)
    logging.getLogger("urllib3").error("of a library", exc_info=True)
logging.getLogger("httpx2").info("not shown either")
thread = threading.Thread(target=connect)
thread.start()
thread.join()
connect()
"""


def said(**environment: str) -> list[str]:
    """The lines on stderr; nothing is on stdout."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr.splitlines()


@pytest.fixture
def environment() -> dict[str, str]:
    return {"LAGLOSS_DATA_DIR": "/nowhere"}


def test_json_is_one_object_a_line(environment: dict[str, str]) -> None:
    lines = [json.loads(line) for line in said(**environment, LAGLOSS_LOG="json")]
    assert [line["event"] for line in lines] == ["closed", "away", "of a library", "crashed", "crashed"]
    assert lines[0] | {"timestamp": ""} == {
        "event": "closed",
        "level": "info",
        "pipeline": "clicks",
        "timestamp": "",
        "windows": 3,
    }
    assert lines[2]["logger"] == "urllib3"
    assert all("ConnectionError: refused" in line["exception"] for line in lines[1:])


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_traceback_shows_no_local_variable(form: str, environment: dict[str, str]) -> None:
    text = "\n".join(said(**environment, LAGLOSS_LOG=form))
    assert text.count("ConnectionError") >= 4
    assert "in connect" in text
    assert SECRET not in text.replace(f"password = {SECRET!r}", "")
    assert "password" not in text


def test_text_has_no_boxes_and_no_colours_outside_a_terminal(environment: dict[str, str]) -> None:
    text = "\n".join(said(**environment))
    assert not set("│╭╰\x1b") & set(text)
    assert "closed" in text.splitlines()[0]


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_service_goes_on_while_its_log_is_on_a_full_disk(environment: dict[str, str], form: str) -> None:
    script = f"{SCRIPT.partition('def connect')[0]}\nfor _ in range(1000):\n    log.info('closed', text='x' * 1000)\n"
    script += "    logging.getLogger('urllib3').error('of a library')\nprint('went on', flush=True)"
    env = {**environment, "LAGLOSS_LOG": form}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, stderr=full, check=False)
    assert done.stdout == b"went on\n"
