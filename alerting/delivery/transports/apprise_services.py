"""Everybody else: the services that the Apprise library knows, by its URLs.

Apprise finds its own way out, so addresses are neither checked nor pinned here, and its answers say only whether it
worked.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Sequence
from typing import Annotated, Final

import apprise
from pydantic import Field

from alerting.delivery.rendering import RenderedMessage, as_text, message
from alerting.delivery.transports.base import GROUP_AT_MOST, Reached, TransportConfig
from alerting.incidents.notification import Notification
from lagloss_server.base.errors import UnusableReceiver
from lagloss_server.net.outcome import Outcome, Sent, TryLater
from lagloss_server.net.secret import Secret

TIMEOUT_S: Final = 30.0
"""Apprise waits up to 5.5 s between two messages to one service, and some services take several requests."""

INCIDENT_CHARACTERS: Final = 2_000
"""Most incidents take no more. Of a longer text than it takes, a service cuts the end off, or refuses all."""

_MENTION: Final = re.compile(r"(?<!\w)@(?=\w)|<(?=[@!#])")
"""Where Discord, Slack, Teams and others begin to read a name: `@everyone`, `<@123>`, `<!channel>`."""
_WORD_JOINER: Final = "\u2060"

_NOTIFY_TYPES: Final = {
    "critical": apprise.NotifyType.FAILURE,
    "warning": apprise.NotifyType.WARNING,
    "acknowledged": apprise.NotifyType.INFO,
    "resolved": apprise.NotifyType.SUCCESS,
    "test": apprise.NotifyType.INFO,
}


class AppriseConfig(TransportConfig):
    """`urls` as Apprise writes them, one service each."""

    urls: Annotated[tuple[Secret, ...], Field(min_length=1, max_length=16)]

    def build(self) -> AppriseTransport:
        for name in ("apprise", "urllib3"):  # they write addresses, which hold the secrets, at several levels
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        return AppriseTransport([_service(number, url.reveal()) for number, url in enumerate(self.urls, 1)])


def _service(number: int, url: str) -> apprise.Apprise:
    asset = apprise.AppriseAsset(
        async_mode=False,
        service_timeout=0,  # with one, Apprise works in threads that keep the process from ending
        storage_mode=apprise.PersistentStoreMode.MEMORY,
    )
    service = apprise.Apprise(asset=asset)
    if not service.add(url) or len(service) != 1:
        raise UnusableReceiver(problem=f"expected URLs of services that Apprise supports, number {number} is not one")
    return service


class AppriseTransport:
    resend_s: float | None = None

    def __init__(self, services: Sequence[apprise.Apprise], timeout_s: float = TIMEOUT_S) -> None:
        self._services = services
        self._reached = Reached()
        self._asking: dict[int, threading.Thread] = {}
        characters = min(plugin.body_maxlen for service in services for plugin in service)
        self.at_most = min(max(characters // INCIDENT_CHARACTERS, 1), GROUP_AT_MOST)
        self.timeout_s = timeout_s

    def send(self, notifications: Sequence[Notification]) -> Outcome:
        """Notify each service in a thread of its own. A thread that hangs cannot be stopped: its service is tried again
        only when that thread has ended."""
        said = message(notifications)
        key = " ".join(str(notification.key) for notification in notifications)
        unreached = [number for number in range(len(self._services)) if str(number) not in self._reached.of(key)]
        ends = time.monotonic() + self.timeout_s
        for number in unreached:
            if number not in self._asking or not self._asking[number].is_alive():
                thread = threading.Thread(target=self._ask, args=(number, key, said), name="apprise", daemon=True)
                self._asking[number] = thread
                thread.start()
        for number in unreached:
            self._asking[number].join(max(ends - time.monotonic(), 0))
        return self._outcome(key)

    def close(self) -> None:
        """Do nothing: no connection is kept open."""

    def _ask(self, number: int, key: str, said: RenderedMessage) -> None:
        text = _without_mentions(as_text(said))
        notify_type = _NOTIFY_TYPES[said.sections[-1].tone]
        try:
            done = self._services[number].notify(
                body=text,
                title=_without_mentions(said.title),
                notify_type=notify_type,
                body_format=apprise.NotifyFormat.TEXT,
            )
        except Exception:  # a plug-in's own; its text may hold the address
            return
        if done:
            self._reached.add(key, [str(number)])

    def _outcome(self, key: str) -> Outcome:
        reached = self._reached.of(key)
        if len(reached) == len(self._services):
            self._reached.forget(key)
            return Sent()
        hang = [number for number, thread in self._asking.items() if thread.is_alive()]
        missing = [str(number + 1) for number in range(len(self._services)) if str(number) not in reached]
        why = f"; timed out after {self.timeout_s:g} s: {', '.join(str(number + 1) for number in hang)}" if hang else ""
        return TryLater(f"Apprise did not deliver to URL number {', '.join(missing)}{why}")


def _without_mentions(text: str) -> str:
    """Return a text that looks the same and in which a chat finds no mention: message ids come from any sender."""
    return _MENTION.sub(f"\\g<0>{_WORD_JOINER}", text).encode("utf-8", "replace").decode()
