"""`lagloss up`: the line that it prints when all is ready, which stands in journals and in the output of scripts, and
the ports that it remembers."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lagloss_server.base.settings import Settings
from lagloss_server.ops.embedded.kafka import _read_ports
from lagloss_server.ops.embedded.postgres import _read_port
from lagloss_server.ops.processes import choose_port
from lagloss_server.ops.up import ServiceStack, _print_ready, _service_ports, _services

SERVICES = ("aggregator", "alerting", "canary", "collector", "dashboard", "taps")


@pytest.mark.parametrize(
    "url",
    ["postgresql://ann:s3cret@db/lagloss", "postgresql://ann@db/lagloss?password=s3cret", "user=ann password=s3cret"],
)
@pytest.mark.parametrize("as_json", [True, False])
def test_the_ready_line_has_no_password(url: str, as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    stack = ServiceStack(Settings(database_url=url), lambda _: None)
    stack.endpoints = {"kafka": "k:9092", "database": url, "dashboard": "http://d", "collector": "http://c"}
    _print_ready(stack.printable(), as_json=as_json)
    shown = capsys.readouterr().out
    assert "s3cret" not in shown
    assert "ann@" in shown


def test_the_taps_alone_know_the_database_by_the_name_that_definitions_use(tmp_path: Path) -> None:
    settings = Settings(
        database_url="postgresql://ann@db/lagloss", taps_url="http://t", dashboard_url="http://d", canary="off"
    )
    variable = "LAGLOSS_TABLES_LAGLOSS_URL"
    named = {service.name: service.env.get(variable) for service in _services(settings, tmp_path)}
    assert {name for name, url in named.items() if url is not None} == {"taps"}
    assert named["taps"] == settings.database_url


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*SERVICES, "1", "x"]), inner, max_size=6)
    ),
    max_leaves=10,
)


@given(JSON.map(lambda found: json.dumps(found).encode()) | st.binary(max_size=40))
@example(b"[]")
@example(b"[" * 100_000)
@example(b'{"dashboard": 70000, "collector": -1, "taps": true, "alerting": "8090", "aggregator": [1]}')
@example(b'{"1": [1e400, 2], "2": [70000, -1]}')
def test_a_damaged_file_of_ports_costs_the_ports_and_not_the_start(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "ports.json")
        path.write_bytes(content)
        ports = _service_ports(Settings(), path)
        assert sorted(ports) == sorted(SERVICES)
        assert all(0 < port < 65_536 for port in ports.values())
        assert json.loads(path.read_text()) == ports
        path.write_bytes(content)
        remembered = _read_ports(path).values()
        assert all(0 < choose_port("Kafka", 0, port) < 65_536 for pair in remembered for port in pair)
        path.write_bytes(content)
        assert 0 < choose_port("PostgreSQL", 0, _read_port(path)) < 65_536


def test_ports_that_are_free_are_those_of_last_time(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    first = _service_ports(Settings(), path)
    assert _service_ports(Settings(), path) == first
