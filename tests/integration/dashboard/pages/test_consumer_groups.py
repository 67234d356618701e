"""Consumer groups on the page of a pipeline and in the API, in a real browser over real rows."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect
from sqlalchemy import delete

from aggregator.consumer_lag.rows import keep, keep_groups
from aggregator.node_groups import NodeGroup, PartitionLag, PartitionOffsets, PartitionProgress
from lagloss_server.groups.consumer_groups import GroupDescription
from lagloss_server.groups.velocity import Status, Velocity
from lagloss_server.model.definition import parse_definition
from lagloss_server.store.partitions import ensure_days
from lagloss_server.store.schema.core import ConsumerGroupRow, ConsumerLagRow
from lagloss_server.store.store import Store
from tests.support.dashboards import Watched, serious_faults, serving, sticks_out
from tests.support.window_documents import CHAIN, chain, document, store_window

GROUPED = CHAIN.replace("{name: mid,", "{name: mid, group: chain.mid,").replace(
    "{name: snk}", "{name: snk, group: chain.<b>snk</b>}"
)
MID, SNK = NodeGroup("chain", "mid", "chain.mid"), NodeGroup("chain", "snk", "chain.<b>snk</b>")
AHEAD_S = 2_600


def lag(
    of: NodeGroup, partition: int, status: Status, commits: float, *, is_at_risk: bool = False, deleted: int = 0
) -> PartitionLag:
    waits = 0 if status == "ok" else 5_000
    loss_ms = round(1_000 * (time.time() + AHEAD_S)) if is_at_risk else None
    progress = PartitionProgress(
        Velocity(commits, 12.5), status, "time", loss_ms, loss_ms, 4_000 if is_at_risk else None, deleted
    )
    at = PartitionOffsets(100, 0, 100 + waits)
    return PartitionLag(of, "orders", partition, waits, 90_000 if waits else 0, at=at, progress=progress)


@pytest.fixture(scope="module")
def served(module_database_url: str) -> Iterator[str]:
    store, now_s = Store(module_database_url), time.time()
    store.apply(parse_definition(GROUPED), now_ms=int(1_000 * (now_s - 7_200)))
    with store.engine.begin() as connection:
        start_s = int(now_s) // 60 * 60 - 240
        store_window(connection, document(chain(), start_s), start_s)
    store.close()
    with serving(module_database_url) as url:
        yield url


@pytest.fixture
def url(module_database_url: str, served: str) -> str:
    """With readings of now: those of two minutes ago are not shown."""
    store, now_s = Store(module_database_url), time.time()
    lags = [*(lag(MID, at, "stalled", 0.0, is_at_risk=at < 3) for at in range(7)), lag(SNK, 0, "ok", 12.5, deleted=1)]
    described = {MID: GroupDescription("Stable", 2, 7), SNK: GroupDescription("PreparingRebalance", 1, 0)}
    with store.engine.begin() as connection:
        ensure_days(connection, [int(now_s)])
        connection.execute(delete(ConsumerLagRow))
        connection.execute(delete(ConsumerGroupRow))
        keep(connection, int(1_000 * now_s), lags)
        keep_groups(connection, int(1_000 * (now_s - 3_600)), described)
        keep_groups(connection, int(1_000 * now_s), described)
    store.close()
    return served


def opened(page: Page, url: str) -> Page:
    page.goto(f"{url}/pipelines/chain?range=1h&zone=UTC")
    page.locator("details[data-fold=groups] > summary").click()
    page.locator("#pipeline-groups table").wait_for()
    return page


def test_the_page_says_what_is_at_risk_and_how_each_group_stands(url: str, browser: Browser) -> None:
    with Watched(browser) as page:
        groups = opened(page, url).locator("#pipeline-groups")
        expect(groups).to_contain_text("12,000 messages of chain.mid in 3 partitions are deleted unread starting at ")
        expect(groups).to_contain_text("1 message of chain.<b>snk</b> deleted unread in this range")
        mid = groups.locator("tr", has=page.get_by_role("rowheader", name="mid"))
        for words in (
            "Stable, 2 members",
            "for 1 h",
            "STALLED",
            "35,000",
            "falling behind by 87.5/s",
            "in 43 min",
            "12,000",
        ):
            expect(mid).to_contain_text(words)
        snk = groups.locator("tr", has=page.get_by_role("rowheader", name="snk"))
        for words in ("PreparingRebalance, 1 member", "OK", "no lag"):
            expect(snk).to_contain_text(words)
        expect(groups.get_by_text("orders/0")).to_be_visible()
        expect(groups).to_contain_text("and 2 partitions more")
        assert serious_faults(page) == []


def test_what_is_not_committed_is_said_to_be_and_counts_for_nothing(
    url: str, module_database_url: str, browser: Browser
) -> None:
    store, now_s = Store(module_database_url), time.time()
    unknown = {"not committed": PartitionOffsets(None, 0, 900), "beyond the end": PartitionOffsets(1_000, 0, 900)}
    lags = [
        PartitionLag(SNK, "orders", 1 + number, None, None, at=at, progress=PartitionProgress(status=status))  # type: ignore[arg-type]
        for number, (status, at) in enumerate(unknown.items())
    ]
    with store.engine.begin() as connection:
        connection.execute(delete(ConsumerLagRow).where(ConsumerLagRow.node == "mid"))
        connection.execute(delete(ConsumerGroupRow).where(ConsumerGroupRow.node == "mid"))
        keep(connection, int(1_000 * now_s), lags[:1])
        keep_groups(connection, int(1_000 * now_s), {MID: GroupDescription("Dead")})

    def told() -> list[tuple[str, int | None, list[str]]]:
        found = httpx2.get(f"{url}/api/v1/pipelines/chain/consumer-groups", params={"range": "1h"}).json()["groups"]
        return [(each["status"], each["lag"], [one["status"] for one in each["partitions"]]) for each in found]

    assert told() == [("not committed", None, []), ("not committed", 0, ["not committed", "ok"])]
    series = httpx2.get(f"{url}/api/v1/pipelines/chain/consumer-lag", params={"range": "1h"}).json()["series"]
    assert series[0]["buckets"][-1]["offsets"]["last"] == 0
    with store.engine.begin() as connection:
        keep(connection, int(1_000 * now_s), lags[1:])
    store.close()
    assert told()[1] == ("beyond the end", None, ["beyond the end", "not committed", "ok"])
    with Watched(browser) as page:
        groups = opened(page, url).locator("#pipeline-groups")
        expect(groups.locator("tr", has=page.get_by_role("rowheader", name="mid"))).to_contain_text("NOT COMMITTED")
        expect(groups.locator("tr", has=page.get_by_text("orders/1"))).to_contain_text("NOT COMMITTED")
        expect(groups.locator("tr", has=page.get_by_text("orders/2"))).to_contain_text("BEYOND THE END")
        assert serious_faults(page) == []


def test_the_table_scrolls_by_itself_on_a_narrow_screen(url: str, browser: Browser) -> None:
    with Watched(browser, width=400) as page:
        opened(page, url)
        assert not sticks_out(page)


def test_the_api_has_each_group_with_its_partitions_the_worst_first(url: str) -> None:
    api = f"{url}/api/v1/pipelines/chain/consumer-groups"
    mid, snk = httpx2.get(api, params={"range": "1h"}).json()["groups"]
    assert (mid["node"], mid["state"], mid["members"], mid["status"]) == ("mid", "Stable", 2, "stalled")
    assert (mid["lag"], mid["at_risk"], mid["catches_up_s"], mid["deleted_unread"]) == (35_000, 12_000, None, 0)
    assert (mid["commits_per_s"], mid["appends_per_s"]) == (0, 87.5)
    assert [one["partition"] for one in mid["partitions"]] == [0, 1, 2, 3, 4, 5, 6]
    assert mid["partitions"][0]["loss_from"] == mid["loss_from"]
    assert mid["partitions"][6]["loss_from"] is None
    assert mid["partitions"][0]["log"] == {"start": 0, "end": 5_100}
    assert (snk["protocol"], snk["lag"], snk["catches_up_s"], snk["deleted_unread"]) == ("classic", 0, 0, 1)
    assert httpx2.get(f"{url}/api/v1/pipelines/nobody/consumer-groups").status_code == 404
