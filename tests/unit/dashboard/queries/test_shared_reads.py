"""Reads that several readers share."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dashboard.queries.shared_reads import SharedReads

READERS = 4


def test_whoever_asks_while_a_version_is_read_gets_that_read() -> None:
    shared, may_end, count = SharedReads[object](10), threading.Event(), [0]

    def work() -> object:
        count[0] += 1
        assert may_end.wait(20)
        return object()

    with ThreadPoolExecutor(READERS) as pool:
        answers = [pool.submit(shared.read, "page", 1, work) for _ in range(READERS)]
        may_end.set()
        found = {id(answer.result(20)) for answer in answers}
    assert (len(found), count[0]) == (1, 1)


def test_another_stamp_is_read_anew_and_takes_the_place_of_the_one_before() -> None:
    shared = SharedReads[str](10)
    assert shared.read("page", 1, lambda: "old") == "old"
    assert shared.read("page", 1, lambda: "new") == "old"
    assert shared.read("page", 2, lambda: "new") == "new"
    assert shared.read("page", 1, lambda: "again") == "again"
    assert shared.read("page", 1, lambda: "anew", anew=True) == "anew"


def test_a_read_that_fails_is_kept_for_nobody() -> None:
    shared = SharedReads[str](10)

    def fail() -> str:
        raise KeyError("gone")

    with pytest.raises(KeyError):
        shared.read("page", 1, fail)
    assert shared.read("page", 1, lambda: "there") == "there"


def test_the_longest_unread_goes_where_there_are_too_many() -> None:
    shared = SharedReads[str](3, len)
    for key in ("a", "b"):
        shared.read(key, 1, lambda key=key: key)  # type: ignore[misc]
    shared.read("a", 1, lambda: "x")
    shared.read("c", 1, lambda: "cc")  # with b there would be four
    assert [shared.read(key, 1, lambda: "x") for key in ("a", "c", "b")] == ["a", "cc", "x"]
