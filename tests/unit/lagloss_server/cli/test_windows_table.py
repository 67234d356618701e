"""What `lagloss windows` prints for a person."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from lagloss_server.cli.windows_table import windows_table
from tests.support.window_documents import chain, document


@pytest.mark.parametrize(("apart_ms", "said"), [(0, False), (91_000, True), (None, False)])
def test_a_window_says_so_where_hosts_clocks_disagree(apart_ms: int | None, said: bool) -> None:
    window = document(chain(), 1_780_000_020, verdict="unknown", reasons=("pending",)) | {"clock_skew_ms": apart_ms}
    text = io.StringIO()
    Console(file=text, width=200).print(windows_table([window]))
    assert "pending" in text.getvalue()
    assert ("clocks 1.5 min apart" in text.getvalue()) == said


@pytest.mark.parametrize(("sample", "said"), [({"sample": 0.1}, "sampled 10 %"), ({}, "sampled")])
def test_a_sampled_window_says_how_much_of_it_was_looked_at(sample: dict[str, float], said: str) -> None:
    window = document(chain(), 1_780_000_020, reasons=("pending", "sample"))
    del window["sample"]
    text = io.StringIO()
    Console(file=text, width=200).print(windows_table([window | sample]))
    assert f"pending, {said}\n" in "\n".join(line.rstrip() + "\n" for line in text.getvalue().splitlines())
