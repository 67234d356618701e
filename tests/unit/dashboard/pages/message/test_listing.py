"""The list of the newest messages that something is wrong with, without a server."""

from __future__ import annotations

from dataclasses import replace

from dashboard.pages.messages.listing import before_of, filters_of, listing
from dashboard.pages.printing import html_of
from dashboard.queries.problem_messages import MessageFilters, ProblemMessage, ProblemMessages, _listed
from dashboard.request.links import Address
from lagloss_server.queries.named_messages import NamedMessage

START_S = 1_795_780_800
LOST = NamedMessage(START_S, 1, "<b>m-1</b>", "lost", ("link src->snk",), None, "src.out", START_S * 1_000.0, None)
PERHAPS = replace(LOST, id_hash=2, message_id=None, kind="perhaps", places=("node snk",), last_checkpoint="snk.in")
DEAD = replace(LOST, id_hash=3, message_id="m-3", kind="dead", places=("node snk",), reason="bad json")
LATE = replace(LOST, id_hash=4, message_id="m-4", kind="late", lag_ms=9_000.0, hop_ms=8_000.0, places=("node snk",))
HERE = Address("/messages", {"zone": "UTC"})


def read(*messages: NamedMessage, filters: MessageFilters = MessageFilters()) -> ProblemMessages:  # noqa: B008
    kinds = {message.kind: 1 for message in messages}
    rows = list(_listed([("chain", message) for message in messages], filters))
    return ProblemMessages(rows, kinds, {"node snk": 3, "link src->snk": 1}, {"bad json": 1}, START_S, START_S)


def test_certain_and_possible_losses_have_other_words_and_each_message_leads_to_its_trail() -> None:
    drawn = html_of(listing(read(LOST, PERHAPS, DEAD, LATE), HERE, several=True))
    assert "1 certainly lost, 1 possibly lost, 2 late, dead-lettered or corrupted, in 2026-11-27" in drawn
    assert 'class="status status-red" title="certain:' in drawn
    assert 'class="status status-orange" title="not certain:' in drawn
    assert "&lt;b&gt;m-1&lt;/b&gt;" in drawn
    assert "/pipelines/chain/messages?zone=UTC&amp;id=0000000000000002&amp;around=2026-11-27T12:00:00Z" in drawn
    for words in ("bad json", "lag 9 s, 8 s in this place", "link src → snk"):
        assert words in drawn


def test_filters_are_links_that_stand_in_the_address() -> None:
    drawn = html_of(listing(read(LOST, PERHAPS), HERE.asking(kind="lost"), several=False))
    assert (
        'aria-current="true" class="plain-anchor nav-link plain-bold" href="/messages?zone=UTC&amp;kind=lost"' in drawn
    )
    assert 'href="/messages?zone=UTC&amp;kind=lost&amp;where=node+snk"' in drawn
    assert filters_of(HERE.asking(kind="nonsense", where="", reason="x")) == MessageFilters(None, None, "x")
    assert before_of(HERE.asking(before="nonsense"), 0.0) is None
    assert before_of(HERE.asking(before="2026-11-27T12:00:00Z"), 0.0) == START_S


def test_a_minute_with_many_of_a_kind_leaves_room_for_others_unless_the_kind_is_chosen() -> None:
    many = [replace(LOST, id_hash=number, message_id=f"m{number}") for number in range(500)]
    rows = read(*many, PERHAPS).rows
    assert [(row.message.kind, row.further) for row in rows][-2:] == [("lost", 490), ("perhaps", 0)]
    chosen = read(*many, PERHAPS, filters=MessageFilters(kind="lost")).rows
    assert ({row.message.kind for row in chosen}, len(chosen), chosen[-1].further) == ({"lost"}, 200, 300)


def test_without_such_messages_the_page_says_so_and_whose_are_hidden() -> None:
    nothing = ProblemMessages([], {}, {}, {}, hidden=("red",))
    drawn = html_of(listing(nothing, HERE, several=True))
    assert "No message is known by name" in drawn
    assert "Without 1 pipeline whose message ids are hidden from you." in drawn


def test_older_minutes_are_a_click_away() -> None:
    cut = replace(read(LOST), is_cut=True, older_s=START_S)
    drawn = html_of(listing(cut, HERE, several=False))
    assert "the newest 20 minutes with such messages" in drawn
    assert 'href="/messages?zone=UTC&amp;before=2026-11-27T12:00:00Z"' in drawn
    assert isinstance(cut.rows[0], ProblemMessage)
