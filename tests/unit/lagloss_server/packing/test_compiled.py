"""Compiled loops: kept on disk where that is possible, and no error where it is not."""

from __future__ import annotations

from typing import Any

from lagloss_server.packing.compiled import compiled


def test_a_loop_is_compiled_where_nothing_can_be_kept_on_disk() -> None:
    namespace: dict[str, Any] = {}
    exec("def twice(number): return 2 * number", namespace)  # of no file, so numba finds no folder to keep it in
    assert compiled(namespace["twice"])(21) == 42
