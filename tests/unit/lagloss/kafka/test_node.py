"""A KafkaNode without a broker: what its reports say."""

from __future__ import annotations

from typing import Any

import pytest

from lagloss import MemoryOutlet
from lagloss.broker.topics import REPORTS
from lagloss.kafka import KafkaNode
from lagloss.wire.format import decode_report


@pytest.mark.parametrize(
    ("options", "resumes"),
    [({}, True), ({"first": True}, False), ({"first": True, "resumes": True}, True), ({"resumes": False}, False)],
)
def test_a_node_that_takes_in_again_what_it_had_in_hand_says_so(options: dict[str, Any], resumes: bool) -> None:
    log = MemoryOutlet()
    with KafkaNode("orders", "mid", "unused", outlet=lambda: log, **options) as node:
        node.emitter.taken_in("a", 0)
    assert {decode_report(value).resumes for value in log.values(REPORTS)} == {resumes}
