"""The line that `lagloss up` prints when all is ready: it stands in journals and in the output of scripts."""

from __future__ import annotations

import pytest

from lagloss_server.ops.up import ServiceStack, _print_ready
from lagloss_server.settings import Settings


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
