"""What is set aside is named wherever an operator looks, until it is done."""

from __future__ import annotations

from aggregator.metrics import AggregatorMetrics
from aggregator.service import Aggregator
from aggregator.set_aside import Item, SetAside
from lagloss_server.base.settings import Settings
from lagloss_server.ops.doctor import check_database
from lagloss_server.store.store import Store
from lagloss_server.store.unreadable import SHOWN

WINDOW = Item("window", "chain", "2026-05-28T20:27:00Z")
GROUP = Item("group", "chain", "orders.mid")


def test_doctor_healthz_and_a_metric_name_it_until_it_is_done(store: Store, database_url: str) -> None:
    settings = Settings(database_url=database_url)
    aggregator, metrics, failures = Aggregator(settings), AggregatorMetrics(), SetAside(store.engine)
    aggregator.set_aside = failures.names
    metrics.set_aside.counts = failures.counts

    def doctor() -> tuple[str, str]:
        (found,) = [check for check in check_database(settings) if check.name == "failed work"]
        return found.verdict, found.finding

    def counted(kind: str) -> float | None:
        return metrics.registry.get_sample_value("lagloss_set_aside", {"kind": kind})

    assert (doctor(), aggregator.health_note(), counted("window")) == (("ok", "none"), "ok", 0)
    failures.put(WINDOW, IndexError("index 0 is out of bounds\nand more"))
    failures.put(GROUP, ValueError("a\0b"))
    assert doctor() == ("warn", f"2: {WINDOW} (IndexError: index 0 is out of bounds), ...")
    assert aggregator.health_note() == f"ok; failed or unreadable: {GROUP}, {WINDOW}"
    assert (counted("window"), counted("rollup"), counted("group")) == (1, 0, 1)
    with store.engine.begin() as connection:
        failures.done(connection, [WINDOW])
    assert doctor() == ("warn", rf"1: {GROUP} (ValueError: a\x00b)")
    failures.forget([GROUP, WINDOW])
    assert (doctor(), aggregator.health_note(), counted("group")) == (("ok", "none"), "ok", 0)


def test_of_very_many_healthz_names_some(store: Store) -> None:
    aggregator = Aggregator(Settings())
    aggregator.set_aside = lambda: [str(at) for at in range(SHOWN + 5)]
    assert aggregator.health_note().endswith(f"{SHOWN - 1} and 5 more")
