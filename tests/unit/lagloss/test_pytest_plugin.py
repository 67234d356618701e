"""The fixture `lagloss_pipeline` as a team has it: tests of their own, run by pytest, and what they are told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from lagloss import Emitter
from lagloss.asgi import BeaconMiddleware
from lagloss.files import FileNode
from lagloss.testing import RecordedPipeline, assert_no_loss, recorded

pytest_plugins = ("pytester",)

NOW_MS = time.time_ns() // 1_000_000
SERVICE = """
import os, time
from lagloss import Emitter

NOW_MS = time.time_ns() // 1_000_000
shop = Emitter("orders", "shop", first=True)  # at import, before any fixture
enrich = Emitter("orders", "enrich")

def take(*names, loses=()):
    for name in names:
        shop.received(name, NOW_MS)
        shop.sent(name, NOW_MS)
        if name not in loses:
            enrich.received(name, NOW_MS)
            enrich.sent(name, NOW_MS)
"""


@pytest.fixture
def recording() -> Iterator[RecordedPipeline]:
    with recorded() as pipeline:
        yield pipeline


def run(pytester: pytest.Pytester, tests: str, *words: str) -> pytest.RunResult:
    pytester.makepyfile(service=SERVICE, test_service=f"from lagloss.testing import assert_no_loss\n{tests}")
    return pytester.runpytest_inprocess("-p", "lagloss.pytest_plugin", "-p", "no:cacheprovider", *words)


def test_a_service_that_loses_nothing_passes_also_with_emitters_of_its_module_and_in_several_tests(
    pytester: pytest.Pytester,
) -> None:
    result = run(
        pytester,
        """
        import service, os, pytest
        @pytest.mark.parametrize("name", ["a", "b"])
        def test_orders(lagloss_pipeline, name):
            assert os.environ["LAGLOSS_KAFKA_BOOTSTRAP"].endswith(".invalid:9092")
            service.take(name)
            assert_no_loss(lagloss_pipeline, between=("shop.out", "enrich.in"))
            assert_no_loss(lagloss_pipeline, at="enrich")
            assert lagloss_pipeline.seen("enrich.out") == {name}
            service.enrich.close()  # as a server's shutdown does

        def test_without_the_fixture_emitters_do_nothing():
            service.take("c")
            assert service.shop.stats().refused == 2
        """.replace("\n        ", "\n"),
    )
    result.assert_outcomes(passed=3)


def test_a_failure_names_the_messages_the_hop_and_where_each_was_last_seen(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
        import service
        def test_orders(lagloss_pipeline):
            service.take("a", "b", "c", loses=("b", "c"))
            assert_no_loss(lagloss_pipeline, between=("shop.out", "enrich.in"), timeout_s=0)
        """.replace("\n        ", "\n"),
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E *AssertionError: 2 of 3 messages lost between shop.out and enrich.in:",
            "E * b  last seen at shop.out, 0.* s after its event time",
            "E * c  last seen at shop.out, *",
        ]
    )
    assert "testing.py:" not in result.stdout.str()


def test_a_test_that_asserts_nothing_fails_for_what_a_node_lost_unless_it_allows_that(
    pytester: pytest.Pytester,
) -> None:
    tests = """
        import service
        def test_orders(lagloss_pipeline):
            service.enrich.received("a", service.NOW_MS)
        def test_orders_that_may_be_lost(lagloss_pipeline):
            lagloss_pipeline.allow_loss()
            service.enrich.received("a", service.NOW_MS)
        def test_nothing(lagloss_pipeline):
            pass
        """.replace("\n        ", "\n")
    result = run(pytester, tests)
    result.assert_outcomes(failed=1, passed=2)
    result.stdout.fnmatch_lines(["E *1 of 1 messages lost at enrich, which received them and neither sent*"])


def test_it_works_with_xdist(pytester: pytest.Pytester) -> None:
    tests = """
        import service, pytest
        @pytest.mark.parametrize("name", list("abcd"))
        def test_orders(lagloss_pipeline, name):
            service.take(name)
            assert lagloss_pipeline.seen("enrich.out") == {name}
        """.replace("\n        ", "\n")
    pytester.makepyfile(service=SERVICE, test_service=tests)
    result = pytester.runpytest_subprocess("-p", "lagloss.pytest_plugin", "-p", "no:dash", "-n", "2")
    result.assert_outcomes(passed=4)


def test_messages_that_were_filtered_or_dead_lettered_are_not_lost(recording: RecordedPipeline) -> None:
    shop, enrich = Emitter("orders", "shop", first=True), Emitter("orders", "enrich")
    for name in "abc":
        shop.received(name, NOW_MS)
        shop.sent(name, NOW_MS, to="enrich")
        enrich.received(name, NOW_MS)
    enrich.filtered("a", NOW_MS, "robot")
    enrich.dead_lettered("b", NOW_MS, "unreadable")
    enrich.sent("c", NOW_MS, to="mail")
    enrich.sent("c", NOW_MS, to="mail")
    recording.assert_no_loss(at="enrich")
    recording.assert_no_loss(between=("shop.in", "enrich.out"))
    assert recording.filtered("enrich") == {"a": "robot"}
    assert recording.dead_lettered() == {"b": "unreadable"}
    assert recording.dead_lettered("shop") == {}
    assert recording.duplicates("enrich.out") == {"c": 2}
    assert recording.duplicates("enrich.in") == {}
    with pytest.raises(AssertionError, match=r"between enrich\.out:mail and mail\.in"):
        recording.assert_no_loss(timeout_s=0)


def test_a_check_of_what_was_never_seen_proves_nothing_and_fails(recording: RecordedPipeline) -> None:
    Emitter("orders", "shop", first=True).received("a", NOW_MS)
    for wanted in ({"between": ("mail.out", "shop.in")}, {"at": "mail"}):
        with pytest.raises(AssertionError, match=r"nothing is proven; checkpoints with messages: shop\.in"):
            recording.assert_no_loss(**wanted, timeout_s=0)  # type: ignore[arg-type]
    for checkpoint in ("shop", "shop.inn", "shop.in:mail", ""):
        with pytest.raises(ValueError, match="expected a checkpoint"):
            recording.seen(checkpoint)


def test_what_is_still_on_its_way_in_a_thread_is_waited_for(recording: RecordedPipeline) -> None:
    emitter = Emitter("orders", "enrich")
    asked = threading.Event()

    def handle() -> None:
        with emitter.processing():
            emitter.received("a", NOW_MS)
            asked.wait()
            emitter.sent("a", NOW_MS)

    thread = threading.Thread(target=handle)
    thread.start()
    with pytest.raises(AssertionError) as failure:
        recording.assert_no_loss(at="enrich", timeout_s=0)
    assert "still in flight at enrich: 1" in str(failure.value)
    asked.set()
    recording.assert_no_loss(at="enrich")
    thread.join()


def test_a_coroutine_waits_without_stopping_its_loop(recording: RecordedPipeline) -> None:
    emitter = Emitter("orders", "enrich")

    async def handle() -> None:
        emitter.received("a", NOW_MS)
        await asyncio.sleep(0.05)
        emitter.sent("a", NOW_MS)

    async def test() -> None:
        task = asyncio.create_task(handle())
        await asyncio.sleep(0)
        with pytest.raises(AssertionError):
            assert_no_loss(recording)  # cannot wait here
        await recording.wait_for_no_loss()
        await task

    asyncio.run(test())


def test_no_broker_is_contacted_whatever_an_emitter_is_given(
    recording: RecordedPipeline, tmp_path_factory: pytest.TempPathFactory
) -> None:
    spool = tmp_path_factory.mktemp("spool")
    kafka = Emitter("orders", "shop", "127.0.0.1:1", first=True, ids="hash", spool=spool)
    http = Emitter("orders", "mail", collector="http://127.0.0.1:1")
    kafka.received("a", NOW_MS)
    http.received("a", NOW_MS)
    assert recording.seen("shop.in") == recording.seen("mail.in") == {"a"}
    assert list(spool.iterdir()) == []


def test_pipelines_are_told_apart(recording: RecordedPipeline) -> None:
    with FileNode("scores", "landing", files="scores-files", first=True) as node:
        node.records.received("a", NOW_MS)
        node.records.sent("a", NOW_MS)
        node.files.received("file", NOW_MS)  # type: ignore[union-attr]
    recording.of("scores").assert_no_loss()
    with pytest.raises(AssertionError, match="file  last seen"):
        recording.of("scores-files").assert_no_loss(timeout_s=0)
    with pytest.raises(AssertionError, match="1 of 2 messages"):
        recording.assert_no_loss(timeout_s=0)


def test_a_middleware_is_recorded(recording: RecordedPipeline) -> None:
    async def app(scope: object, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 422})  # type: ignore[operator]

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b""}

    async def send(event: object) -> None: ...

    emitter = Emitter("orders", "shop", first=True)
    middleware = BeaconMiddleware(app, emitter, missing="draw")
    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    asyncio.run(middleware(scope, receive, send))  # type: ignore[arg-type]
    assert list(recording.filtered("shop").values()) == ["http 422"]


def test_an_emitter_continues_afterwards_as_it_was() -> None:
    live = Emitter("orders", "shop", first=True)
    before = (live.id, live._is_open)
    with recorded() as pipeline:
        assert live.received("a", NOW_MS)
        made_within = Emitter("orders", "mail")
        assert made_within.received("a", NOW_MS)
        assert pipeline.seen("shop.in") == pipeline.seen("mail.in") == {"a"}
    assert (live.id, live._is_open) == before
    assert not made_within.received("b", NOW_MS)
