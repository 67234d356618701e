"""Settings: what wins over what, and what is never printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from lagloss.environment import secret
from lagloss.errors import BadSetting
from lagloss_server.base.database_url import connection_options
from lagloss_server.base.errors import NotConfigured, SeveralRunning
from lagloss_server.base.instances import (
    ENDPOINTS_FILE,
    find_running,
    read_endpoints,
    registry,
    remove_endpoints,
    write_endpoints,
)
from lagloss_server.base.settings import Settings

URL = "postgresql://lagloss:hunter2@127.0.0.1:5432/lagloss"


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("LAGLOSS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LAGLOSS_DATA_DIR", str(tmp_path))
    return tmp_path


def test_without_anything_the_data_directory_is_in_the_users_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAGLOSS_DATA_DIR", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert Settings().data_dir == Path("/home/somebody/.local/share/lagloss")


def test_the_endpoints_of_a_running_up_are_found(data_dir: Path) -> None:
    write_endpoints(data_dir, {"kafka": "127.0.0.1:1", "database": URL, "dashboard": "http://127.0.0.1:2", "pid": "7"})
    settings = Settings.load()
    assert (settings.kafka_bootstrap, settings.database_url) == ("127.0.0.1:1", URL)
    assert settings.dashboard_url == "http://127.0.0.1:2"
    remove_endpoints(data_dir)
    assert Settings.load().kafka_bootstrap == ""


def test_the_environment_wins_over_the_endpoints(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_endpoints(data_dir, {"kafka": "127.0.0.1:1", "database": URL})
    monkeypatch.setenv("LAGLOSS_KAFKA_BOOTSTRAP", "kafka.example:9092")
    settings = Settings.load()
    assert (settings.kafka_bootstrap, settings.database_url) == ("kafka.example:9092", URL)


def test_a_command_line_option_wins_over_the_environment(data_dir: Path, tmp_path: Path) -> None:
    assert Settings.load(data_dir=tmp_path / "other").data_dir == tmp_path / "other"
    assert Settings.load(data_dir=None).data_dir == data_dir


def test_the_endpoints_file_is_for_its_owner_only(data_dir: Path) -> None:
    write_endpoints(data_dir, {"database": URL})
    assert (data_dir / ENDPOINTS_FILE).stat().st_mode & 0o077 == 0


def test_a_torn_endpoints_file_counts_as_none(data_dir: Path) -> None:
    (data_dir / ENDPOINTS_FILE).write_text('{"kafka": "127.0')
    with pytest.raises(NotConfigured, match=r"lagloss up.*LAGLOSS_KAFKA_BOOTSTRAP"):
        Settings.load().require_kafka()


def test_no_secret_is_printed(data_dir: Path) -> None:
    settings = Settings(
        database_url=URL, alert_webhook_url="https://hooks.example/T0/secret-token", oidc_client_secret="s3cr3t-0f-1dp"
    )
    for text in (repr(settings), str(settings), str(settings.printable())):
        assert "hunter2" not in text
        assert "secret-token" not in text
        assert "s3cr3t-0f-1dp" not in text
    assert settings.printable()["database_url"] == "postgresql://lagloss@127.0.0.1:5432/lagloss"


def test_a_secret_may_come_from_a_file_that_a_variable_names(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("it's a \\ secret\n")
    monkeypatch.setenv("LAGLOSS_DATABASE_URL", "postgresql://lagloss@db/lagloss?sslmode=verify-full")
    monkeypatch.setenv("LAGLOSS_DATABASE_PASSWORD_FILE", str(tmp_path / "secret"))
    monkeypatch.setenv("LAGLOSS_OIDC_CLIENT_SECRET_FILE", str(tmp_path / "secret"))
    settings = Settings.load()
    assert settings.oidc_client_secret == "it's a \\ secret"
    options = connection_options(settings.require_database())
    assert options == {
        "user": "lagloss",
        "host": "db",
        "dbname": "lagloss",
        "sslmode": "verify-full",
        "password": "it's a \\ secret",
    }
    assert "it's a" not in str(settings)
    monkeypatch.setenv("LAGLOSS_DATABASE_PASSWORD", "another")
    with pytest.raises(BadSetting, match="LAGLOSS_DATABASE_PASSWORD and LAGLOSS_DATABASE_PASSWORD_FILE are both set"):
        Settings.load()
    monkeypatch.setenv("LAGLOSS_DATABASE_PASSWORD", "")
    monkeypatch.setenv("LAGLOSS_DATABASE_PASSWORD_FILE", str(tmp_path / "none"))
    with pytest.raises(BadSetting, match=r"LAGLOSS_DATABASE_PASSWORD_FILE is .*/none, which cannot"):
        Settings.load()


def test_a_secret_file_that_this_user_may_not_read_is_explained(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secret").touch(mode=0o600)
    monkeypatch.setenv("LAGLOSS_DATABASE_PASSWORD_FILE", str(tmp_path / "secret"))
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(10001)  # as in a container: somebody else's file
    else:
        (tmp_path / "secret").chmod(0)
    try:
        with pytest.raises(BadSetting) as raised:
            secret(os.environ, "LAGLOSS_DATABASE_PASSWORD")
        user = os.geteuid()
    finally:
        if is_root:
            os.seteuid(0)
    expected = f"_FILE is {tmp_path}/secret, which user {user} cannot read. Grant that user read access"
    assert expected in str(raised.value)


def test_settings_cannot_be_changed(data_dir: Path) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().log_level = "debug"  # type: ignore[misc]


def test_a_port_that_is_none_is_refused(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGLOSS_DASHBOARD_PORT", "99999")
    with pytest.raises(ValidationError, match="dashboard_port"):
        Settings.load()


@pytest.fixture
def home(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("LAGLOSS_DATA_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    return tmp_path


def _start(data_dir: Path, kafka: str) -> subprocess.Popen[str]:
    """A process that publishes its endpoints and waits to be ended."""
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from lagloss_server.base.instances import remove_endpoints, write_endpoints\n"
        "write_endpoints(Path(sys.argv[1]), {'kafka': sys.argv[2], 'database': 'postgresql://x'})\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
        "remove_endpoints(Path(sys.argv[1]))\n"
    )
    data_dir.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", script, data_dir, kafka], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_what_runs_is_found_wherever_its_data_is_and_only_while_it_runs(home: Path) -> None:
    demo = home / "share" / "lagloss" / "demo"
    with _start(demo, "127.0.0.1:1") as running:
        found = Settings.load()
        assert (found.kafka_bootstrap, found.data_dir) == ("127.0.0.1:1", demo)
        running.communicate()
    with pytest.raises(NotConfigured, match="no running `lagloss up` or `lagloss demo` found"):
        Settings.load().require_kafka()


def test_a_demo_is_found_by_the_data_directory_that_it_was_given(home: Path) -> None:
    with _start(home / "mine" / "demo", "127.0.0.1:1") as running:
        assert Settings.load(data_dir=home / "mine").kafka_bootstrap == "127.0.0.1:1"
        with _start(home / "mine", "127.0.0.1:2") as nearer:
            assert Settings.load(data_dir=home / "mine").kafka_bootstrap == "127.0.0.1:2"
            nearer.communicate()
        with pytest.raises(NotConfigured, match=rf"found in {home / 'other'}"):
            Settings.load(data_dir=home / "other").require_database()
        running.communicate()


def test_of_several_that_run_one_has_to_be_chosen(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _start(home / "a", "127.0.0.1:1") as first, _start(home / "b", "127.0.0.1:2") as second:
        with pytest.raises(SeveralRunning, match=rf"--data-dir {home / 'a'}, --data-dir {home / 'b'}"):
            Settings.load()
        assert Settings.load(data_dir=home / "b").kafka_bootstrap == "127.0.0.1:2"
        with monkeypatch.context() as given:
            given.setenv("LAGLOSS_DATABASE_URL", URL)  # a service by itself, set up by hand
            assert Settings.load().database_url == URL
        first.communicate()
        second.communicate()


def test_a_killed_instance_is_forgotten(home: Path) -> None:
    with _start(home / "a", "127.0.0.1:1") as running:
        running.kill()
        running.wait()
        assert read_endpoints(home / "a")
        assert find_running() == []
        assert list(registry().iterdir()) == []


def test_a_home_that_cannot_be_written_to_keeps_nothing_from_running(data_dir: Path, home: Path) -> None:
    (home / "share").write_text("a file where the folder should be")
    write_endpoints(data_dir, {"kafka": "127.0.0.1:1"})
    assert Settings.load(data_dir=data_dir).kafka_bootstrap == "127.0.0.1:1"
    remove_endpoints(data_dir)
