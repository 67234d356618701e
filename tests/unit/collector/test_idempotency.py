"""Idempotency-Key: what is remembered, for how long, and how much of it."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import Response

from collector.idempotency import Repeats
from lagloss_server.net.problem_details import Problem


def test_only_so_many_answers_are_kept_and_none_for_longer_than_so() -> None:
    async def go() -> None:
        asked = []

        async def respond() -> Response:
            asked.append(1)
            return Response(status_code=202)

        repeats = Repeats(max_kept=10)
        for number in range(50):
            await repeats.answer("", str(number), b"", respond)
            assert len(repeats) <= 10
        await repeats.answer("", "49", b"", respond)
        assert len(asked) == 50
        await repeats.answer("another caller", "49", b"", respond)
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
            return Response(status_code=202)

        repeats = Repeats(max_kept=10)
        await repeats.answer("quiet", "k", b"", respond)
        for number in range(50):
            await repeats.answer("loud", str(number), b"", respond)
        assert len(repeats) == 10
        await repeats.answer("quiet", "k", b"", respond)
        assert len(asked) == 51

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
