"""Idempotency-Key: what is remembered, for how long, and how many bytes of it."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from fastapi import Response
from hypothesis import given
from hypothesis import strategies as st

from collector.idempotency import ANSWER_BYTES, Repeats
from lagloss_server.net.problem_details import Problem

ROOM = 10 * (ANSWER_BYTES + 100)


def test_only_so_many_bytes_of_answers_are_kept_and_none_for_longer_than_so() -> None:
    async def go() -> None:
        asked = []

        async def respond() -> Response:
            asked.append(1)
            return Response(b"x" * 98, status_code=202)

        repeats = Repeats(max_bytes=ROOM)
        for number in range(10, 60):
            await repeats.answer("", str(number), b"", respond)
            assert repeats.size <= ROOM
        assert len(repeats) == 10
        await repeats.answer("", "59", b"", respond)
        assert len(asked) == 50
        await repeats.answer("another caller", "59", b"", respond)
        assert len(asked) == 51
        brief = Repeats(kept_s=0)
        for _ in range(2):
            await brief.answer("", "k", b"", respond)
        assert len(asked) == 53

    asyncio.run(go())


def test_answers_to_one_caller_do_not_push_out_those_to_another() -> None:
    async def go() -> None:
        asked = []

        async def respond() -> Response:
            asked.append(1)
            return Response(b"x" * 90, status_code=202)

        repeats = Repeats(max_bytes=ROOM)
        await repeats.answer("quiet", "k", b"", respond)
        for number in range(50):
            await repeats.answer("loud", str(number), b"", respond)
        assert len(repeats) == 10
        await repeats.answer("quiet", "k", b"", respond)
        assert len(asked) == 51

    asyncio.run(go())


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.integers(0, 3 * ROOM)), max_size=40))
def test_answers_of_any_size_are_bounded_and_the_smallest_caller_keeps_its_share(
    requests: list[tuple[str, int, int]],
) -> None:
    async def go() -> None:
        repeats = Repeats(max_bytes=ROOM)

        async def respond(size: int) -> Response:
            return Response(b"x" * size, status_code=202)

        await repeats.answer("small", "k", b"", partial(respond, 0))
        for caller, key, size in requests:
            await repeats.answer(caller, str(key), b"", partial(respond, size))
            assert repeats.size <= ROOM
        again: list[int] = []

        async def count() -> Response:
            again.append(1)
            return Response(status_code=202)

        await repeats.answer("small", "k", b"", count)
        assert again == []

    asyncio.run(go())


def test_a_request_in_progress_keeps_no_answer_behind_it_from_being_forgotten() -> None:
    async def go() -> None:
        repeats, may_end = Repeats(max_bytes=ROOM), asyncio.Event()

        async def slow() -> Response:
            await may_end.wait()
            return Response(status_code=202)

        async def large() -> Response:
            return Response(b"x" * (ROOM // 2), status_code=202)

        first = asyncio.create_task(repeats.answer("", "slow", b"", slow))
        await asyncio.sleep(0)
        for number in range(10):
            await repeats.answer("", str(number), b"", large)
            assert repeats.size <= ROOM
        may_end.set()
        assert (await first).status_code == 202

    asyncio.run(go())


def test_who_waits_for_a_first_request_that_fails_is_told_to_come_again() -> None:
    async def go() -> None:
        repeats, may_end = Repeats(), asyncio.Event()

        async def fail() -> Response:
            await may_end.wait()
            raise Problem(404, "No", "nothing")

        waiting = [asyncio.create_task(repeats.answer("", "k", b"", fail)) for _ in range(2)]
        await asyncio.sleep(0)
        may_end.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [problem.status for problem in found if isinstance(problem, Problem)] == [404, 503]
        assert len(repeats) == 0

    asyncio.run(go())


@pytest.mark.parametrize("key", ["", "k" * 256])
def test_a_key_has_1_to_255_characters(key: str) -> None:
    async def respond() -> Response:
        return Response()

    with pytest.raises(Problem) as found:
        asyncio.run(Repeats().answer("", key, b"", respond))
    assert found.value.status == 400
