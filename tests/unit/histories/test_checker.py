"""The checker of histories: it accepts what is right, and finds every forged mistake."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.histories.checker import (
    Excuses,
    IncidentSeen,
    Seen,
    WindowSeen,
    false_losses,
    forgotten_actions,
    wrong_pages,
    wrong_windows,
)
from tests.histories.ledger import Books, Ledger, path_of
from tests.histories.receiver import Page
from tests.histories.traffic import HTTP, JSON, SDK

START = 1_800_000_000 // 60 * 60
LOST = ("3", "7")


def ledger(lost: tuple[str, ...] = LOST, *, in_doubt: tuple[str, ...] = ()) -> Ledger:
    """Ten messages of one window, one each second; the lost ones never end."""
    made = Ledger()
    for number in range(10):
        name, at_s = str(number), START + 10 + number
        made.add([f"sent {name} {at_s * 1000} {at_s}"])
        if name not in in_doubt:
            made.add([f"acked {name} {at_s * 1000} {at_s}"])
        if name not in lost:
            made.add([f"ended {name} {at_s * 1000} {at_s + 1}"])
    return made


RIGHT = WindowSeen("loss", 10, 2, 2, 0)


NONE = Excuses()


def seen(window: WindowSeen | None = RIGHT, **missing: str) -> Seen:
    kinds = {name.removeprefix("m"): kind for name, kind in missing.items()} or dict.fromkeys(LOST, "lost")
    return Seen({} if window is None else {START: window}, kinds, {})


def problems(view: Seen, excuses: Excuses = NONE, book: Ledger | None = None, pipeline: str = SDK) -> list[str]:
    return list(wrong_windows(pipeline, book or ledger(), view, [START], excuses))


def test_a_right_window_has_no_problem() -> None:
    assert problems(seen()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        replace(RIGHT, messages=9),
        replace(RIGHT, messages=11),
        replace(RIGHT, lost_min=1),
        replace(RIGHT, lost_min=3),
        replace(RIGHT, lost_max=1),
        replace(RIGHT, lost_max=3),
        replace(RIGHT, pending=1),
        replace(RIGHT, verdict="ok"),
        replace(RIGHT, verdict="unknown"),
        replace(RIGHT, verdict="idle"),
        replace(RIGHT, reasons=("evidence:mid",)),
        replace(RIGHT, reasons=("crash:mid",)),
        replace(RIGHT, reasons=("unexplained",)),
        replace(RIGHT, reasons=("failed",)),
    ],
)
def test_a_wrong_window_is_found(wrong: WindowSeen | None) -> None:
    assert problems(seen(wrong)) != []


@pytest.mark.parametrize(
    "missing",
    [
        {"m3": "lost"},
        {"m3": "lost", "m7": "perhaps"},
        {"m3": "lost", "m7": "pending"},
        {"m3": "lost", "m7": "lost", "m1": "lost"},
        {"m3": "lost", "m7": "lost", "m1": "perhaps"},
    ],
)
def test_wrong_names_are_found(missing: dict[str, str]) -> None:
    assert problems(seen(**missing)) != []


def test_a_window_without_losses_is_ok_and_nothing_else() -> None:
    calm = ledger(())
    ok = WindowSeen("ok", 10, 0, 0, 0)
    view = Seen({START: ok})
    assert problems(view, book=calm) == []
    for verdict in ("loss", "unknown", "idle"):
        assert problems(Seen({START: replace(ok, verdict=verdict)}), book=calm) != []


def test_a_minute_without_messages_may_be_idle() -> None:
    assert problems(Seen({START: WindowSeen("idle", 0, 0, 0, 0)}), book=Ledger()) == []


def test_a_crash_makes_losses_unsure_only_where_it_reaches() -> None:
    crashed = replace(RIGHT, verdict="unknown", lost_min=0, lost_max=2, reasons=("crash:mid", "evidence:mid"))
    view = seen(crashed, m3="perhaps", m7="perhaps")
    assert problems(view, Excuses({"mid": [START + 40.0]})) == []
    assert problems(view, Excuses({"mid": [START + 400.0]})) != []
    assert problems(view, Excuses({"snk": [START + 40.0]})) != []
    assert problems(view) != []
    assert problems(seen(replace(crashed, verdict="ok"), m3="perhaps", m7="perhaps"), Excuses({"mid": [START + 40.0]}))
    assert problems(seen(crashed, m3="perhaps"), Excuses({"mid": [START + 40.0]})) != []  # one is not named


def test_a_loss_in_a_window_that_no_crash_made_unsure_is_certain_whoever_died() -> None:
    assert problems(seen(m3="lost", m7="perhaps"), Excuses({"mid": [START + 50.0]})) != []


def test_a_window_whose_evidence_is_away_may_be_unknown_and_not_ok() -> None:
    unknown, ok = WindowSeen("unknown", 3, 0, 2, 0, ("evidence:mid",)), WindowSeen("ok", 3, 0, 0, 0)
    during, before = Excuses(away=[(START + 20.0, START + 40.0)]), Excuses(away=[(START - 99.0, START - 1.0)])
    assert problems(seen(unknown), during) == []
    assert problems(seen(unknown), before) != []
    assert problems(seen(ok), during) == [f"{SDK} {START}: ok, with 2 lost"]


def test_what_a_dying_node_had_just_sent_is_in_doubt_and_no_more() -> None:
    excuses = Excuses({"src": [START + 20.5]})
    without_last = replace(RIGHT, messages=9)
    assert problems(seen(without_last), excuses) == []
    assert problems(seen(without_last), Excuses({"src": [START + 200.0]})) != []
    assert problems(seen(replace(RIGHT, messages=11)), excuses) != []


def test_a_message_that_was_never_acknowledged_is_in_doubt() -> None:
    assert problems(seen(m3="lost"), book=ledger(in_doubt=("7",))) != []  # lost.min is 2, and only one is named
    assert problems(seen(replace(RIGHT, lost_min=1, lost_max=1), m3="lost"), book=ledger(in_doubt=("7",))) == []


def test_the_nodes_of_http_die_together() -> None:
    crashed = replace(RIGHT, verdict="unknown", lost_min=0, reasons=("crash:mail", "evidence:mail"))
    view = seen(crashed, m3="perhaps", m7="perhaps")
    assert problems(view, Excuses({"mail": [START + 40.0]}), pipeline=HTTP) == []


def test_what_the_collector_acknowledged_is_counted() -> None:
    book = ledger((), in_doubt=("9",))
    for count, is_right in ((8, False), (9, True), (10, True), (11, False)):
        view = Seen({START: WindowSeen("unknown", count, 0, 0, 0, ("evidence:post",))})
        assert (problems(view, book=book, pipeline=JSON) == []) == is_right


def test_a_loss_that_was_said_of_a_message_that_ended_or_was_never_sent_is_false() -> None:
    view = Seen(said_lost={"3": START + 80.0})
    assert list(false_losses(ledger(), view)) == []
    assert len(list(false_losses(ledger(), Seen(said_lost={"1": START + 80.0})))) == 1
    assert len(list(false_losses(ledger(), Seen(said_lost={"nobody": START + 80.0})))) == 1


def page(incident: str, kind: str, number: str) -> Page:
    return Page(number, incident, kind, START + 1.0)


INCIDENTS = {"a": IncidentSeen(is_resolved=True), "b": IncidentSeen(is_resolved=False)}
PAGES = [page("a", "opened", "1"), page("a", "resolved", "2"), page("b", "opened", "3")]


def test_each_incident_paged_once_is_right() -> None:
    assert list(wrong_pages(INCIDENTS, PAGES, Excuses(), may_repeat=False)) == []


@pytest.mark.parametrize(
    "pages",
    [
        PAGES[1:],
        PAGES[:2],
        [PAGES[0], PAGES[2]],
        [*PAGES, page("a", "opened", "4")],
        [*PAGES, PAGES[0]],
        [*PAGES, page("c", "opened", "5")],
        [*PAGES, page("b", "updated", "1")],
    ],
)
def test_pages_that_are_missing_repeated_or_of_nothing_are_found(pages: list[Page]) -> None:
    assert list(wrong_pages(INCIDENTS, pages, Excuses(), may_repeat=False)) != []


def test_an_incident_that_is_withheld_may_have_been_paged_once_before() -> None:
    withheld = {**INCIDENTS, "c": IncidentSeen(is_resolved=False, is_withheld=True)}
    opened = page("c", "opened", "5")
    assert list(wrong_pages(withheld, PAGES, Excuses(), may_repeat=False)) == []
    assert list(wrong_pages(withheld, [*PAGES, opened], Excuses(), may_repeat=False)) == []
    assert list(wrong_pages(withheld, [*PAGES, opened, page("c", "opened", "6")], Excuses(), may_repeat=False)) != []


def test_a_repeat_by_the_same_id_is_excused_where_an_alerter_was_disturbed_and_a_second_page_never() -> None:
    assert list(wrong_pages(INCIDENTS, [*PAGES, PAGES[0]], Excuses(), may_repeat=True)) == []
    assert list(wrong_pages(INCIDENTS, [*PAGES, page("a", "opened", "4")], Excuses(), may_repeat=True)) != []


def test_an_action_that_was_acknowledged_is_stored_unless_the_database_lost_that_moment() -> None:
    done = {"silence x": START + 5.0, "apply y": START + 9.0}
    assert list(forgotten_actions(done, {"silence x", "apply y"}, Excuses())) == []
    assert len(list(forgotten_actions(done, {"silence x"}, Excuses()))) == 1
    assert list(forgotten_actions(done, {"silence x"}, Excuses(forgotten=[(START + 8.0, START + 10.0)]))) == []


def test_books_are_read_on_by_whole_lines(tmp_path: Any) -> None:
    books = Books((path_of(tmp_path, "app1"), path_of(tmp_path, "app2")))
    assert books.look().sent == {}
    with path_of(tmp_path, "app1").open("a") as file:
        file.write("sent a 1000 1.0\nacked a 1000 1.1\nsent b 2")
        file.flush()
        assert books.look().sent == {"a": 1000}
        file.write("000 2.0\n")
    assert books.look().sent == {"a": 1000, "b": 2000}
    assert books.ledger.acked == {"a"}
