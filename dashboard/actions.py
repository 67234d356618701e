"""Actions on the dashboard: take an incident, silence some, end a silence, test a receiver. Operators only."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import structlog

from dashboard.access.silences import limited, require_whole
from dashboard.request.current_user import LOCAL, require_operator, require_operator_of, require_operator_of_all
from lagloss_server.incidents import actions as incident_actions
from lagloss_server.incidents import receiver_check as rehearsal
from lagloss_server.incidents.actions import MAX_AUTHOR, MAX_TEXT, Silence
from lagloss_server.incidents.incident import incident as read_incident
from lagloss_server.incidents.receiver_check import CheckOutcome
from lagloss_server.store.store import Store

_log = structlog.get_logger("lagloss.dashboard")


def acknowledge(store: Store, incident: str, note: str | None = None, author: str | None = None) -> UUID:
    """Take the incident whose id begins so; its id. `author` counts only without a login.

    Raises:
        NotAllowed, BadText, UnknownIncident, AmbiguousIncident, AlreadyAcknowledged, IncidentIsResolved.
    """
    by, text = doer(author), _short("a note", note or "") or None
    record = read_incident(store, incident)
    require_operator_of(record.pipeline)
    taken = incident_actions.acknowledge(store.unscoped, str(record.id), by, text)
    _log.info("acknowledged", incident=str(taken), by=by)
    return taken


def silence(
    store: Store, matchers: Sequence[str], *, reason: str, for_s: float, author: str | None = None
) -> tuple[Silence, list[UUID]]:
    """Silence what matches for a while; return the silence, and the open incidents that it matches. One that acts for
    a team silences only what they may act on.

    Raises:
        NotAllowed, BadText, BadSilence, LimitReached.
    """
    by = doer(author)
    checked = incident_actions.checked_matchers(matchers)
    why = _short("a reason", reason)
    silenced, about = incident_actions.silence(
        store.unscoped, limited(store, checked), reason=why, author=by, for_s=for_s
    )
    _log.info("silenced", silence=silenced.id, matchers=silenced.matchers, by=by)
    return silenced, about


def end_silence(store: Store, silence_id: str, author: str | None = None) -> None:
    """End a silence now; receivers are notified of what is still open.

    Raises:
        NotAllowed, BadText, UnknownSilence.
    """
    by = doer(author)
    require_whole(store, silence_id)
    incident_actions.unsilence(store.unscoped, silence_id, by)
    _log.info("silence_ended", silence=silence_id, by=by)


def rehearse(
    store: Store, receiver: str, author: str | None = None, *, wait_s: float = rehearsal.WAIT_S
) -> CheckOutcome:
    """Send a test by way of the leading alerter, and waits for what the receiver says.

    Raises:
        NotAllowed, BadText, UnknownReceiver, NoAlerter.
    """
    by = doer(author)
    require_operator_of_all("a receiver")
    _log.info("receiver_tested", receiver=receiver, by=by)
    return rehearsal.await_test(store, rehearsal.request_test(store, receiver, by), wait_s=wait_s)


def doer(typed: str | None) -> str:
    """Return the name to record: of the person who is logged in; without a login, the name they typed.

    Raises:
        NotAllowed: they may only look.
        BadText: it cannot be a name.
    """
    person = require_operator()
    if person is not LOCAL:
        return person.name
    return " ".join(_short("a name", typed or "", MAX_AUTHOR).split()) or LOCAL.name


def _short(what: str, text: str, most: int = MAX_TEXT) -> str:
    return incident_actions.storable(what, text.strip(), most)
