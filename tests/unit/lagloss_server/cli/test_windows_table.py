"""What `lagloss windows` prints for a person."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from lagloss_server.cli.windows_table import windows_table
from tests.support.window_documents import chain, document, window_of


@pytest.mark.parametrize(("apart_ms", "said"), [(0, False), (91_000, True), (None, False)])
def test_a_window_says_so_where_hosts_clocks_disagree(apart_ms: int | None, said: bool) -> None:
    window = document(chain(), 1_780_000_020, verdict="unknown", reasons=("pending",)) | {"clock_skew_ms": apart_ms}
    text = io.StringIO()
    Console(file=text, width=200).print(windows_table([window_of(window)]))
    assert "pending" in text.getvalue()
    assert ("clock skew 1.5 min" in text.getvalue()) == said


def test_a_window_says_where_messages_were_out_of_order() -> None:
    window = document(chain(), 1_780_000_020, counts={"src.in": 9, "mid.in": 9})
    window["checkpoints"][1]["out_of_order"] = 1_200
    text = io.StringIO()
    Console(file=text, width=200).print(windows_table([window_of(window)]))
    assert f"1,200 out of order at {window['checkpoints'][1]['name']}" in text.getvalue()


def test_a_sampled_window_says_how_much_of_it_was_looked_at() -> None:
    window = document(chain(), 1_780_000_020, reasons=("pending", "sample")) | {"sample": 0.1}
    text = io.StringIO()
    Console(file=text, width=200).print(windows_table([window_of(window)]))
    assert "pending, sampled 10 %\n" in "\n".join(line.rstrip() + "\n" for line in text.getvalue().splitlines())


def test_several_destinations_have_a_row_each_below_their_window() -> None:
    def there(name: str, due: int, lost: int, p95_ms: float) -> dict[str, Any]:
        return {
            "name": name,
            "due": due,
            "delivered": due - lost,
            "lost": {"min": lost, "max": lost},
            "e2e_lag_ms": {"p95": p95_ms},
        }

    slow, fast = there("conn-fb", 40, 0, 2_100.0), there("conn-ga", 50, 5, 120.0)

    def printed(*destinations: dict[str, Any]) -> list[list[str]]:
        text = io.StringIO()
        window = document(chain(), 1_780_000_020) | {"destinations": list(destinations)}
        Console(file=text, width=100).print(windows_table([window_of(window)]))
        return [line.split() for line in text.getvalue().splitlines()[2:]]

    assert printed(slow, fast) == [
        ["at", "conn-fb", "40", "40", "0", "0", "%", "2.1", "s"],
        ["at", "conn-ga", "50", "45", "5", "10", "%", "120", "ms"],
    ]
    assert printed(slow) == printed() == []
