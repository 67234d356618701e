"""Repairs that operators begin on an incident's page: a dry run, a confirmation by its count, a thread that sends."""

from __future__ import annotations

import contextvars
import threading
from typing import TYPE_CHECKING, Final

import structlog
from confluent_kafka import KafkaException
from sqlalchemy.exc import SQLAlchemyError

from dashboard.actions import doer
from dashboard.request.current_user import require_operator_of
from lagloss.broker.errors import reaching
from lagloss.errors import LaglossError, UsageError
from lagloss.wire.format import WINDOW_S
from lagloss_server.base import format as fmt
from lagloss_server.base.settings import Settings
from lagloss_server.incidents.incident import Incident
from lagloss_server.incidents.incident import incident as read_incident
from lagloss_server.store.store import Store

if TYPE_CHECKING:
    from lagloss_server.repair.preparation import Prepared

SEND_ALL_THE_SAME: Final = "send"
"""Choice of an operator who knows that nodes are not declared idempotent."""
MOST_AT_ONCE: Final = 4
TIMEOUT_S: Final = 300.0

_log = structlog.get_logger("lagloss.dashboard")
_running: Final[set[tuple[str, str, int, int]]] = set()
_guard: Final = threading.Lock()


class NotConfirmed(UsageError):
    """{summary}. Nothing was sent. Type {count} to send {what}."""


def places_to_repair(incident: Incident) -> list[str]:
    """Return the links and nodes of an incident as a repair names them, worst first."""
    kinds = {"link": "link", "node": "node", "retrier": "node"}
    return [f"{kinds[place['kind']]}:{place['name']}" for place in incident.where if place.get("kind") in kinds]


def repair(
    store: Store,
    incident_id: str,
    *,
    at: str,
    from_topic: str = "",
    confirmed: str = "",
    undeclared: str = "",
    author: str | None = None,
) -> str:
    """Send what was lost at a place in the windows of an incident again, in a thread, if the operator has typed how
    many messages that are. Return what is done, for people.

    Raises:
        NotConfirmed: the count is not that of the dry run, which is in the message.
        NotAllowed, UnknownIncident, AmbiguousIncident, UsageError: as `prepare`; or it is running.
        KafkaUnreachable: the brokers do not answer.
        NumbaMissing, Boto3Missing: the dashboard's installation cannot read records, or files.
        AwsUnreachable: S3 does not answer.
    """
    # not before somebody repairs: 60 MB, which not every installation has
    from lagloss_server.repair.preparation import prepare
    from lagloss_server.repair.statement import plan_document, plan_lines

    doer(author)
    incident = read_incident(store, incident_id)
    require_operator_of(incident.pipeline)
    bootstrap = Settings.load().require_kafka()
    key = (incident.pipeline, at, incident.first_window_s, incident.last_window_s)
    with reaching(bootstrap):
        prepared = prepare(
            store.unscoped,
            bootstrap,
            incident.pipeline,
            incident.first_window_s,
            incident.last_window_s + WINDOW_S,
            at,
            from_topic=from_topic.strip() or None,
        )
    waiting = prepared.waiting
    summary = "; ".join(plan_lines(plan_document(prepared)))
    if not waiting:
        raise UsageError(detail=f"{summary}. There is nothing to send.")
    if prepared.must_be_confirmed and undeclared != SEND_ALL_THE_SAME:
        nodes = ", ".join(prepared.not_idempotent)
        raise UsageError(
            detail=f"{summary}. Nothing was sent: {nodes} can have a second effect. Declare `idempotent: true` in the"
            " definition, or choose to send all the same."
        )
    if confirmed.strip().replace(",", "") != str(waiting):
        raise NotConfirmed(summary=summary, count=waiting, what="it" if waiting == 1 else "them")
    with _guard:
        if key in _running:
            raise UsageError(detail=f"a repair of {at} is running already")
        if len(_running) >= MOST_AT_ONCE:
            raise UsageError(detail=f"{MOST_AT_ONCE} repairs are running; begin the next when one has ended")
        _running.add(key)
    context = contextvars.copy_context()  # the audit trail names who began it
    arguments = (key, store.unscoped, bootstrap, prepared)
    threading.Thread(target=lambda: context.run(_send, *arguments), name="repair", daemon=True).start()
    return f"{fmt.counted(waiting, 'message')} into {', '.join(prepared.plan.topics)}. This page shows what arrives."


def _send(key: tuple[str, str, int, int], store: Store, bootstrap: str, prepared: Prepared) -> None:
    """Carry a repair out. Should this process end, the next one who begins the repair goes on with it."""
    from lagloss_server.repair.runner import carry_out

    try:
        document = carry_out(store, bootstrap, prepared, TIMEOUT_S, threading.Event(), lambda _: None)
        _log.info("repaired", repair=document["repair"], sent=document["sent"], arrived=document["arrived"])
    except (LaglossError, KafkaException, SQLAlchemyError) as error:
        _log.warning("repair_failed", pipeline=key[0], place=key[1], error=str(error))
    finally:
        with _guard:
            _running.discard(key)
