"""Messages of a range that are lost afterwards, with their names if the person who asks may see these."""

from __future__ import annotations

from lagloss_server.incidents.lost_afterwards import LostAfterwardsDocument, lost_document
from lagloss_server.incidents.lost_afterwards_store import read_lost_messages, read_lost_minutes
from lagloss_server.model.time_range import TimeRange
from lagloss_server.store.store import Store


def read_lost_afterwards(store: Store, pipeline: str, span: TimeRange, at_most: int) -> LostAfterwardsDocument:
    """Return what is lost afterwards of windows that start in a range, and the names of up to this many messages.

    Raises:
        UnknownPipeline: there is none of this name.
    """
    store.demand(pipeline)
    with store.engine.connect() as connection:
        minutes = read_lost_minutes(connection, pipeline, span.from_s, span.to_s)
    if not store.may_see_ids(pipeline):
        return lost_document(pipeline, minutes, None)
    if minutes:
        store.look_at_ids("ids.list", pipeline, "lost afterwards")
    with store.engine.connect() as connection:
        messages = read_lost_messages(connection, pipeline, span.from_s, span.to_s, at_most)
    return lost_document(pipeline, minutes, messages)
