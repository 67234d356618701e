"""`make audit` finds known vulnerabilities, by pip-audit itself, and says where it could not look."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
AUDIT = ROOT / ".ci" / "audit.py"
LOCK = f"""alembic==1.0 \\
    --hash=sha256:{"0" * 64}
    # via nothing
jinja2==3.0 \\
    --hash=sha256:{"1" * 64}
"""
HOLE = {
    "id": "GHSA-aaaa-bbbb-cccc",
    "aliases": ["CVE-2026-1"],
    "summary": "a hole",
    "affected": [
        {
            "package": {"name": "jinja2", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "3.1"}]}],
        }
    ],
}


class _Osv(http.server.BaseHTTPRequestHandler):
    """Answers as https://google.github.io/osv.dev/post-v1-query/ says: nothing, or the vulnerabilities."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        holes = [HOLE] if asked == {"package": {"name": "jinja2", "ecosystem": "PyPI"}, "version": "3.0"} else []
        body = json.dumps({"vulns": holes} if holes else {}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def osv() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Osv) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query"
        server.shutdown()


def audit(folder: Path, url: str, ignored: str = "") -> tuple[int, str]:
    """The exit code and the output of an audit of LOCK."""
    (folder / "lock.txt").write_text(LOCK)
    (folder / "ignored.toml").write_text(ignored)
    # an index that is nowhere: these tests ask no service of the world
    environment = {**os.environ, "LAGLOSS_OSV_URL": url, "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, AUDIT, folder / "lock.txt", folder / "ignored.toml"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def ignoring(days: int) -> str:
    until = datetime.now(UTC).date() + timedelta(days=days)
    return f'[[ignored]]\nid = "CVE-2026-1"\nreason = "never called"\nuntil = {until}\n'


def test_a_known_vulnerability_ends_the_audit_with_its_name(osv: str, tmp_path: Path) -> None:
    code, said = audit(tmp_path, osv)
    assert code == 1
    assert "jinja2 3.0: CVE-2026-1, fixed in 3.1\n" in said
    assert "alembic" not in said


def test_what_is_ignored_for_a_reason_is_found_again_after_its_day(osv: str, tmp_path: Path) -> None:
    assert audit(tmp_path, osv, ignoring(1)) == (0, "audit: 2 packages looked up at osv, 0 findings\n")
    code, said = audit(tmp_path, osv, ignoring(0))
    assert code == 1
    assert "never called" in said


def test_where_no_advisories_can_be_reached_the_audit_says_so_and_ends_well(tmp_path: Path) -> None:
    code, said = audit(tmp_path, "http://127.0.0.1:9/v1/query")
    assert (code, said) == (0, "audit: not done, no service with advisories can be reached from here\n")


def test_each_ignored_vulnerability_has_a_reason_and_a_day_within_half_a_year() -> None:
    ignored = tomllib.loads((ROOT / ".ci" / "known-vulnerabilities.toml").read_text()).get("ignored", [])
    latest = datetime.now(UTC).date() + timedelta(days=183)
    for each in ignored:
        assert each.keys() == {"id", "reason", "until"}
        assert each["reason"]
        assert each["until"] <= latest


def test_ci_audits_what_is_locked() -> None:
    assert "\nmake audit\n" in (ROOT / ".ci" / "run").read_text()
