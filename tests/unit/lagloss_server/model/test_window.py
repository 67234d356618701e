"""Windows as they are stored and printed."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, structs

from lagloss_server.model.window import (
    NO_LAGS,
    DestinationCounts,
    Interval,
    ListedWindow,
    LossRatio,
    PrintedWindow,
    SourceCounts,
    Window,
    on_time_counts,
)
from lagloss_server.packing.packed_json import pack_text, unpack_text
from tests.support.window_documents import clicks, document, result_of, window_of

START_S = 1_795_250_400
HEAD = ["pipeline", "window_start", "state", "revision", "verdict", "reasons", "proof", "sample", "closed_at"]
LOSSES = {"event-norm": (2, 3), "col-service->event-norm": (0, 1)}


def listed(**more: Any) -> ListedWindow:
    counts = {"col-service.in": 100, "conn-ga.filtered": 7}
    found = document(clicks(), START_S, verdict="loss", messages=100, lost=LOSSES, counts=counts, due={"conn-ga": 60})
    return window_of(found | more)


def packed(fields: dict[str, Any]) -> bytes:
    return pack_text(json.dumps(fields).encode())


def test_a_window_comes_back_from_its_bytes_and_equal_ones_have_the_same() -> None:
    stored = result_of(listed())
    assert Window.unpack(stored.pack()) == stored
    assert Window.unpack(stored.pack()).pack() == stored.pack()
    assert not {"state", "revision", "closed_at", "history"} & json.loads(unpack_text(stored.pack())).keys()


def test_a_field_of_a_newer_version_is_passed_over_and_a_wrong_value_is_refused() -> None:
    stored = result_of(listed())
    assert Window.unpack(packed({**stored.document(), "future": 1})) == stored
    with pytest.raises(ValueError, match=r"\$\.messages"):
        Window.unpack(packed({**stored.document(), "messages": "many"}))


def test_what_is_printed_has_the_promised_order_and_nothing_that_a_window_does_not_have() -> None:
    printed = json.loads(msgspec.json.encode(listed(history=True).contract()))
    assert list(printed)[: len(HEAD)] == HEAD
    assert not {"sources", "sides", "history"} & printed.keys()
    assert printed == {name: value for name, value in listed().document().items() if name != "history"}
    assert {*PrintedWindow.__struct_fields__, "history"} == {*ListedWindow.__struct_fields__}
    assert list(printed["links"][0])[:2] == ["from", "to"]
    assert all("out_of_order" not in row for row in printed["checkpoints"])


def test_the_parents_of_a_source_are_left_out_or_unknown_or_counted() -> None:
    source = SourceCounts("web", 10, 10, 0, 0, 0, Interval(0, 0), None, None, NO_LAGS)
    assert source.parents_not_whole is UNSET
    assert "parents_not_whole" not in msgspec.to_builtins(source)
    unknown = structs.replace(source, parents_not_whole=None)
    assert msgspec.to_builtins(unknown)["parents_not_whole"] is None
    assert source != unknown


def test_losses_are_named_by_their_places_and_shares_are_of_the_messages() -> None:
    assert listed().losses == [("node event-norm", Interval(2, 3)), ("link col-service->event-norm", Interval(0, 1))]
    due = DestinationCounts("conn-ga", 40, 30, 2, 0, 0, Interval(4, 8), 0.5, NO_LAGS)
    assert (due.loss_ratio, due.lost_min, due.lost_max) == (LossRatio(0.1, 0.2), 4, 8)
    assert on_time_counts(due) == (19, 38)
    assert structs.replace(due, messages=0).loss_ratio == LossRatio(None, None)
    unknown = structs.replace(due, lost=None, on_time_share=None)
    assert (unknown.loss_ratio, unknown.lost_max, on_time_counts(unknown)) == (None, 0, (0, 0))
