"""What a repair would do, and what it has done, as JSON and as lines for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NotRequired, TypedDict, cast

from lagloss.errors import EXIT_BREACHED, EXIT_NOT_ENOUGH_DATA, EXIT_OK
from lagloss_server.base import format as fmt
from lagloss_server.model.message_ids import unescape_id
from lagloss_server.model.time_range import FromTo
from lagloss_server.model.window import rfc3339
from lagloss_server.repair.ledger import RepairPlan, RepairRequest, StoredRepair
from lagloss_server.repair.lost import WindowLoss
from lagloss_server.repair.plan import PERHAPS_SENT, PlannedMessage, set_hash
from lagloss_server.repair.preparation import Prepared

SHOWN: Final = 20
"""Ids of a kind that lines for people name."""


class LossDocument(TypedDict):
    """Messages of the windows, and those of them that were lost (rule 6)."""

    messages: int
    lost_min: int
    lost_max: int


Found = TypedDict("Found", {"found": int})  # noqa: UP013
"""The messages whose records are there. (A call, since no attribute is called `found`.)"""


class RepairDocument(FromTo, Found):
    """A repair that is planned. `lost` = `found` + `gone`; `gone`: records that the topics do not have any more;
    `topic`: that is sent into; `in_other_repairs`: lost messages that another repair of the place has, and that did not
    arrive by it; `repaired`: those that did; `unnamed`: missing ones whose fate is unknown one by one; `other_groups`:
    consumer groups that get what is sent, and that no definition names; `before`: the windows' loss when the repair was
    planned."""

    repair: str | None
    pipeline: str
    place: str
    state: str
    lost: int
    gone: int
    gone_ids: list[str]
    topic: str
    set_sha256: str
    rate: float
    not_idempotent: list[str]
    before: LossDocument
    in_other_repairs: NotRequired[int]
    repaired: NotRequired[int]
    other_groups: NotRequired[list[str]]
    unnamed: NotRequired[int]
    sample: NotRequired[float]


class StatementDocument(RepairDocument):
    """A repair that has run. `sent` counts all of it, whichever run sent them; `arrived_meanwhile`: those that needed
    no sending; `elsewhere`: those that passed the place meanwhile, and did not arrive; `refused`: those whose records
    the topic does not take; `missing`: those that were sent and did not arrive; `after`: the windows' loss now."""

    sent: int
    arrived: int
    missing: list[str]
    arrived_meanwhile: int
    elsewhere: list[str]
    refused: list[str]
    stop_reason: str | None
    after: NotRequired[LossDocument]


def plan_document(prepared: Prepared) -> RepairDocument:
    """Return what a repair would do."""
    stored = prepared.stored
    document = _head(prepared.request, prepared.plan, prepared.messages, stored)
    document["rate"] = round(prepared.rate, 1)
    document["not_idempotent"] = list(prepared.not_idempotent)
    if prepared.repaired:
        document["repaired"] = prepared.repaired
    if prepared.other_groups:
        document["other_groups"] = list(prepared.other_groups)
    return document


def nothing_sent(document: RepairDocument) -> StatementDocument:
    """Return the statement of a repair that had nothing to send."""
    return _statement(document, [], None)


def statement(
    stored: StoredRepair,
    messages: Sequence[PlannedMessage],
    not_idempotent: Iterable[str] = (),
    after: Sequence[WindowLoss] | None = None,
) -> StatementDocument:
    """Return what a repair has done so far."""
    head = _head(stored.request, stored.plan, messages, stored)
    head["not_idempotent"] = list(not_idempotent)
    document = _statement(head, messages, stored.stop_reason)
    document["state"] = stored.state
    if after is not None:
        document["after"] = loss_of(after)
    return document


def _statement(head: RepairDocument, messages: Sequence[PlannedMessage], stop_reason: str | None) -> StatementDocument:
    sent = [planned for planned in messages if planned.state in PERHAPS_SENT]
    document = cast("StatementDocument", dict(head))
    document["state"] = "finished"
    document["sent"] = len(sent)
    document["arrived"] = sum(planned.is_delivered for planned in sent)
    document["missing"] = [id_of(planned) for planned in sent if not planned.is_delivered]
    document["arrived_meanwhile"] = sum(planned.state == "arrived" for planned in messages)
    document["elsewhere"] = [id_of(planned) for planned in messages if planned.state == "elsewhere"]
    document["refused"] = [id_of(planned) for planned in messages if planned.state == "refused"]
    document["stop_reason"] = stop_reason
    return document


def without_names(document: StatementDocument, messages: Iterable[PlannedMessage]) -> dict[str, object]:
    """Return a statement as it is stored: who may not see message ids reads it, too. Windows are kept for a shorter
    time: it has how many messages of each arrived."""
    named = {name: value for name, value in document.items() if name != "gone_ids"}
    counts = {name: len(document[name]) for name in ("missing", "elsewhere", "refused")}
    arrived = Counter(planned.message.window_start_s for planned in messages if planned.is_delivered)
    return {**named, **counts, "arrived_by_window": sorted(arrived.items())}


def exit_code(document: StatementDocument) -> int:
    """Return 0 if all that is lost arrived; 4 if all did that could be sent, or that this repair has to send; else
    1."""
    if document["missing"] or document["elsewhere"] or document["state"] != "finished":
        return EXIT_BREACHED
    left = document["gone"] or document["refused"] or document.get("unnamed") or document.get("in_other_repairs")
    return EXIT_NOT_ENOUGH_DATA if left else EXIT_OK


def plan_lines(document: RepairDocument) -> Iterator[str]:
    """Yield for people what a repair would do."""
    lost = fmt.counted(document["lost"], "message")
    yield f"{lost} lost at {document['place']} of {document['pipeline']}, from {document['from']} to {document['to']}"
    yield f"{document['found']} have a record to send into {document['topic']}, at {document['rate']:g} per second"
    yield from _named("gone", document["gone_ids"])
    yield from _left_out(document)
    if document["not_idempotent"]:
        yield f"can have a second effect: {', '.join(document['not_idempotent'])}"
    if document.get("other_groups"):
        yield f"read by consumer groups that no definition names, too: {', '.join(document['other_groups'])}"


def statement_lines(document: StatementDocument) -> Iterator[str]:
    """Yield for people what a repair has done."""
    if document["repair"] is not None:
        reason = f", {document['stop_reason']}" if document["stop_reason"] else ""
        yield f"{document['repair']}: {document['state']}{reason}"
    yield f"sent {document['sent']} of {document['lost']}, arrived {document['arrived']}"
    if document["arrived_meanwhile"]:
        yield f"{document['arrived_meanwhile']} arrived before they were sent again"
    yield from _named("past the place by themselves, and not arrived", document["elsewhere"])
    yield from _named("gone", document["gone_ids"])
    yield from _named("refused by the topic", document["refused"])
    yield from _named("sent and not arrived", document["missing"])
    yield from _left_out(document)
    before, after = document["before"], document.get("after")
    if after is not None:
        yield f"lost before the repair: {_loss(before)}; now: {_loss(after)}"


def loss_of(windows: Iterable[WindowLoss]) -> LossDocument:
    """Return the loss of windows together."""
    windows = list(windows)
    return {
        "messages": sum(window.messages for window in windows),
        "lost_min": sum(window.lost_min for window in windows),
        "lost_max": sum(window.lost_max for window in windows),
    }


def id_of(planned: PlannedMessage) -> str:
    """Return the id of a message as it was sent; its hash in hex if the name is unknown."""
    message = planned.message
    return f"{message.id_hash:016x}" if message.message_id is None else unescape_id(message.message_id)


def _head(
    request: RepairRequest, plan: RepairPlan, messages: Sequence[PlannedMessage], stored: StoredRepair | None
) -> RepairDocument:
    gone = [planned for planned in messages if planned.state == "gone"]
    document: RepairDocument = {
        "repair": None if stored is None else stored.name,
        "pipeline": request.pipeline,
        "place": request.place,
        "from": rfc3339(request.from_s),
        "to": rfc3339(request.to_s),
        "state": "planned" if stored is None else stored.state,
        "lost": len(messages),
        "found": len(messages) - len(gone),
        "gone": len(gone),
        "gone_ids": list(map(id_of, gone)),
        "topic": ", ".join(plan.topics),
        "set_sha256": set_hash(planned.message for planned in messages) if stored is None else stored.set_hash,
        "rate": round((stored and stored.rate) or 0.0, 1),
        "not_idempotent": [],
        "before": loss_of(plan.windows),
    }
    if plan.unnamed:
        document["unnamed"] = plan.unnamed
    if plan.in_other_repairs:
        document["in_other_repairs"] = plan.in_other_repairs
    if plan.sample < 1:
        document["sample"] = plan.sample
    return document


def _left_out(document: RepairDocument) -> Iterator[str]:
    if document.get("repaired"):
        yield f"{document['repaired']} more arrived by other repairs of this place"
    if document.get("in_other_repairs"):
        yield f"{document['in_other_repairs']} more are in other repairs of this place, and have not arrived"
    if document.get("unnamed"):
        yield f"{document['unnamed']} more are missing, with a fate that is unknown one by one: they are left out"
    if document.get("sample", 1) < 1:
        yield f"of a sample of {fmt.percent(document['sample'])}: what is lost of the others is unknown"


def _named(what: str, ids: Sequence[str]) -> Iterator[str]:
    if ids:
        more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
        yield f"{len(ids)} {what}: {', '.join(ids[:SHOWN])}{more}"


def _loss(loss: LossDocument) -> str:
    return f"{fmt.interval(str, loss['lost_min'], loss['lost_max'])} of {loss['messages']} messages"
