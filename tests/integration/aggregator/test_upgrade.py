"""To the tables of the next version and back, while a pipeline runs: nothing is lost on the way."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from lagloss.broker.topics import create_topics
from lagloss_server.base.errors import TablesUnknown
from lagloss_server.store import recompute_requests
from lagloss_server.store.migrate import demand_newest, migrate
from lagloss_server.store.store import Store
from tests.integration.aggregator.test_aggregator_process import aggregator, health
from tests.integration.aggregator.test_outages import MESSAGES, Minutes
from tests.support.closers import wait_until
from tests.support.next_version import go_back, next_version


@pytest.mark.slow
def test_a_migration_forward_and_back_under_running_emitters_loses_nothing(
    kafka_bootstrap: str, database_url: str, store: Store, tmp_path: Path
) -> None:
    """What was closed before stays; what was sent before, during and after is closed as it is."""
    create_topics(kafka_bootstrap)
    with ExitStack() as stack:
        minutes = stack.enter_context(closing(Minutes(kafka_bootstrap)))
        minutes.define(store)

        def are_closed(windows: int) -> bool:
            return len(minutes.closed(store)) == windows

        with aggregator(kafka_bootstrap, database_url, tmp_path) as process:
            for _ in range(2):
                minutes.send()
            minutes.flush()
            wait_until(lambda: are_closed(2), 120, "for the windows before the migration")
        before = minutes.closed(store)
        with next_version(tmp_path / "next"):
            migrate(database_url)
        minutes.send()
        minutes.flush()
        with pytest.raises(TablesUnknown):
            demand_newest(store.engine)
        with next_version(tmp_path / "again"):
            go_back(database_url)
        minutes.send()
        with aggregator(kafka_bootstrap, database_url, tmp_path) as process:
            minutes.send()
            minutes.flush()
            wait_until(lambda: are_closed(5), 120, "for all windows")
            wait_until(lambda: health(process) == (200, "ok"), 30, "for all to be well")
            # what was overdue then is judged again as its time comes, minutes from now, or when it is asked for
            request = recompute_requests.add(store, minutes.name, minutes.start_s, minutes.start_s + 600)
            wait_until(lambda: recompute_requests.answer_to(store, request), 60, "for all windows to be closed again")
        found = minutes.closed(store)
        assert [window["messages"] for window in found] == [MESSAGES] * 5
        lost = MESSAGES // 50
        # of the newest, nothing that came later has overtaken the last message
        assert [window["lost"] for window in found[:4]] == [{"min": lost, "max": lost}] * 4
        assert [window["window_start"] for window in found[:2]] == [window["window_start"] for window in before]
        names = [{one.message_id for one in store.missing(minutes.name, minutes.start_s + 60 * at)} for at in range(4)]
        assert names == [{f"{window}-{at}" for at in range(0, MESSAGES, 50)} for window in range(4)]
