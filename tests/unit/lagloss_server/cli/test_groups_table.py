"""The table of `lagloss groups`."""

from __future__ import annotations

from io import StringIO

from msgspec.structs import replace
from rich.console import Console

from dashboard.pages.groups.page import _about
from lagloss_server.cli.groups_table import groups_table
from lagloss_server.groups.cluster_groups import GroupReading, NamedBy
from tests.support.group_rows import group


def test_a_source_connector_has_neither_state_nor_members_and_is_called_one() -> None:
    mirror = replace(group("mirror", [NamedBy("orders", "copy")]), kind="connect", state="", members=0)
    screen = StringIO()
    console = Console(file=screen, width=200)
    console.print(groups_table([GroupReading(0, mirror), GroupReading(0, replace(mirror, kind="consumer"))], 1.0))
    connector, other = screen.getvalue().splitlines()[1:]
    assert "(connector)" in connector
    assert "(connector)" not in other
    assert connector.split()[1:4] == ["(connector)", "–", mirror.status or "–"]
    assert "orders/copy" in connector
    assert _about(mirror, several=False) == "source connector"
