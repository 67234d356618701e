"""Races and deadlines: two closers at once, reports that land while a window is read, time that passes in silence."""
# ruff: noqa: F811 - a fixture of another module has the name of the argument that asks for it

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import pytest

from aggregator.clock import Catchup
from aggregator.kernel.plan import ReadPlan
from aggregator.kernel.spark_reader import BlockReader, Reading
from lagloss.wire.format import OffsetRange
from lagloss_server.queries.beacon_log import LogRecord
from tests.integration.aggregator.closing.test_closer import IDS, Chain, chain, send_all  # noqa: F401
from tests.support.kafka_log import wait_for
from tests.support.window_documents import documents

MINUTE_MS = 60_000


@dataclass(frozen=True)
class InterruptedReader(BlockReader):
    """Something happens after each read, before what it found is used."""

    meanwhile: Callable[[], object] = lambda: None

    def read(self, ranges: Sequence[OffsetRange], plan: ReadPlan, kept: Sequence[LogRecord] = ()) -> Reading:
        found = super().read(ranges, plan, kept)
        self.meanwhile()
        return found


def interrupt(chain: Chain, meanwhile: Callable[[], object]) -> None:
    """From now on this happens in the middle of each of the chain's closings."""
    reads = chain.parts.closer.reads
    parts = {field.name: getattr(reads.reader, field.name) for field in fields(reads.reader)}
    reads.reader = InterruptedReader(**parts, meanwhile=meanwhile)


def send_late(chain: Chain) -> None:
    """What `send_all` left out arrives after all, and is followed; the closer is busy and does not look."""
    for side in ("in", "out"):
        chain.send("snk", side, IDS[::20])
    assert chain.emitters["snk"].flush(30)
    chain.parts.follow_all(refresh=False)


def test_of_two_closers_the_one_that_knows_less_leaves_the_row_alone(chain: Chain) -> None:
    send_all(chain)
    send_all(chain, window=1)
    chain.settle()
    window, parts = (chain.name, chain.start_s), chain.parts
    other = parts.another()

    def other_closes() -> None:
        send_late(chain)
        other.watch.refresh()
        other.closer.close_windows([window], int(time.time() * 1000))

    interrupt(chain, other_closes)
    chain.close(0)
    newest = chain.window()
    assert (newest["revision"], newest["verdict"], newest["lost"]) == (1, "ok", {"min": 0, "max": 0})
    assert chain.store.missing(*window) == []
    assert documents(chain.store.revisions(*window)) == []


def test_a_report_that_lands_while_its_window_is_read_makes_it_dirty(chain: Chain) -> None:
    send_all(chain)
    send_all(chain, window=1)
    chain.settle()
    landed = []

    def lands() -> None:
        if not landed:
            landed.append(True)
            send_late(chain)

    interrupt(chain, lands)
    chain.close(0)
    assert (chain.window()["verdict"], chain.window()["lost"]["max"]) == ("loss", 10)
    later_ms = int(time.time() * 1000) + MINUTE_MS // 2  # its tallies stand still by then
    while chain.parts.closer.tick(later_ms, later_ms):
        pass
    assert (chain.window()["revision"], chain.window()["verdict"], chain.window()["lost"]["max"]) == (2, "ok", 0)


@pytest.mark.slow
def test_a_message_at_a_dead_sink_is_overdue_in_the_end_though_no_report_comes(chain: Chain) -> None:
    send_all(chain)
    chain.settle()
    for node in ("src", "mid"):
        chain.emitters[node].close()
    chain.parts.follow_all()
    catchup = Catchup()
    began_ms = int(time.time() * 1000)

    def drive(minute: int) -> None:
        """The clock goes on; the end of the reports stays where it is, but for what the idle sink sends."""
        now_ms = began_ms + minute * MINUTE_MS

        def is_caught_up() -> bool:
            chain.parts.follow_all()
            return catchup.update(now_ms, chain.parts.follower.positions(), chain.parts.reports.ends) == now_ms

        wait_for(is_caught_up, what="the end of the reports")
        while chain.parts.closer.tick(now_ms, now_ms):
            pass

    drive(2)
    early = chain.window()
    assert (early["verdict"], early["pending"], early["lost"]) == ("unknown", 10, {"min": 0, "max": 0})
    for minute in (6, 12, 18, 24):
        drive(minute)
    end = chain.window()
    assert (end["pending"], end["lost"]) == (0, {"min": 0, "max": 10})
    assert "overdue" in end["reasons"]
    assert "pending" not in end["reasons"]
    windows = documents(chain.store.windows(chain.name, chain.start_s, chain.start_s + 20 * 60))
    assert {(window["state"], window["pending"]) for window in windows} == {("closed", 0)}
    assert len(windows) == 20
