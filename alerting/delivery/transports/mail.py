"""Mail by SMTP: text and HTML, in one thread an incident, to each recipient once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from email import policy
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Final

from alerting.delivery.rendering import as_html, as_text, message
from alerting.delivery.transports.base import GROUP_AT_MOST, Reached, TransportConfig
from alerting.incidents.notification import Notification
from lagloss_server.net.mail import Recipients, ServerConfig, addr_spec, send_mail
from lagloss_server.net.outcome import Outcome, TryLater
from lagloss_server.net.smtp import SmtpServer

MAX_REFERENCES: Final = 20


class MailConfig(ServerConfig, TransportConfig):
    """Mail server and recipients."""

    to: Recipients

    def build(self) -> MailTransport:
        return MailTransport(self.server(), self.from_, self.to)


class MailTransport:
    at_most: int = GROUP_AT_MOST
    resend_s: float | None = None

    def __init__(self, server: SmtpServer, sender: str, recipients: Sequence[str]) -> None:
        self._server = server
        self._sender = sender
        self._recipients = recipients
        self._reached = Reached()
        self.timeout_s = server.timeout_s

    def send(self, notifications: Sequence[Notification]) -> Outcome:
        """After a part of the recipients was put off, only those are tried again."""
        mail = compose(notifications, self._sender, self._recipients)
        name = str(mail["Message-ID"])
        delivery = send_mail(self._server, mail, self._recipients, self._reached.of(name))
        self._reached.add(name, delivery.reached)
        if not isinstance(delivery.outcome, TryLater):
            self._reached.forget(name)
        return delivery.outcome

    def close(self) -> None:
        """Do nothing: no connection is kept open."""


def compose(notifications: Sequence[Notification], sender: str, recipients: Sequence[str]) -> EmailMessage:
    """Compose the mail. `Message-ID` is the same at every attempt. The mail that opens an incident has the incident's
    own, and all others refer to that."""
    said = message(notifications)
    host = addr_spec(sender).rpartition("@")[2]
    threads = [
        f"<incident-{_token(key)}@{host}>"
        for key in dict.fromkeys(_key(notification) for notification in notifications)
    ]
    mail = EmailMessage(policy=policy.SMTP)
    mail["From"] = sender
    mail["To"] = ", ".join(recipients)
    mail["Subject"] = said.title.encode("utf-8", "replace").decode()
    mail["Date"] = format_datetime(notifications[0].claimed_at)
    if len(notifications) == 1 and notifications[0].body.get("type") == "incident.opened":
        mail["Message-ID"] = threads[0]
    else:
        mail["Message-ID"] = (
            f"<lagloss-{_token('-'.join(str(notification.key) for notification in notifications))}@{host}>"
        )
        mail["In-Reply-To"] = threads[-1]
        mail["References"] = " ".join(threads[-MAX_REFERENCES:])
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(as_text(said), cte="quoted-printable")
    mail.add_alternative(as_html(said), subtype="html", cte="quoted-printable")
    return mail


def _key(notification: Notification) -> str:
    return f"test-{notification.key}" if notification.action == "test" else notification.dedup_key


def _token(text: str) -> str:
    """Return the text if a Message-ID can hold it, else its digest."""
    short = len(text) <= 64 and text.isascii() and text.replace("-", "").isalnum()
    return text if short else hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
