"""The service's own tests: what it does, and that it loses nothing on the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from fastapi.testclient import TestClient
from service import make_shop, run_mailer

from lagloss.testing import RecordedPipeline, assert_no_loss


@contextmanager
def running(kafka: str, mail: Callable[[str, int], None]) -> Iterator[TestClient]:
    """Run shop and mailer."""
    stopping = threading.Event()
    mailer = threading.Thread(target=run_mailer, args=(kafka, mail, stopping))
    mailer.start()
    try:
        with TestClient(make_shop(kafka)) as client:
            yield client
    finally:
        stopping.set()
        mailer.join()


def test_every_order_is_mailed(lagloss_pipeline: RecordedPipeline, kafka: str) -> None:
    mails: list[int] = []
    with running(kafka, lambda _, number: mails.append(number)) as client:
        for number in range(20):
            customer = "robot" if number == 7 else "ann"
            assert client.post("/orders", json={"number": number, "customer": customer}).status_code == 202
        assert client.post("/orders", json={"number": "none"}).status_code == 422
        assert_no_loss(lagloss_pipeline, between=("shop.in", "mailer.out"), timeout_s=20)
    assert len(mails) == 19
    assert list(lagloss_pipeline.filtered("mailer").values()) == ["robot"]
    assert list(lagloss_pipeline.filtered("shop").values()) == ["http 422"]
    assert lagloss_pipeline.duplicates("mailer.out") == {}


def test_an_order_that_is_not_mailed_is_named(lagloss_pipeline: RecordedPipeline, kafka: str) -> None:
    """Show what a loss looks like: this test loses an order on purpose."""
    lagloss_pipeline.allow_loss()

    def mail(_customer: str, _number: int) -> None:
        raise ConnectionError

    with TestClient(make_shop(kafka)) as client:
        client.post("/orders", json={"number": 1, "customer": "ann"})
        assert_no_loss(lagloss_pipeline, at="shop", timeout_s=20)
        with pytest.raises(ConnectionError):
            run_mailer(kafka, mail, threading.Event())
    with pytest.raises(AssertionError, match="1 of 1 messages lost at mailer"):
        assert_no_loss(lagloss_pipeline, at="mailer", timeout_s=0)
