"""Mail by SMTP: text and HTML, in one thread an incident, to each recipient once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email import policy
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from alerting.notification import Notification
from alerting.secret import Secret
from alerting.text import as_html, as_text, message, one_line
from alerting.transports.base import Outcome, Refused, Sent, TryLater
from alerting.transports.config import TransportConfig
from alerting.transports.reached import Reached
from alerting.transports.smtp import Login, Reply, SmtpServer

MAX_REFERENCES: Final = 20


def _one_address(text: str) -> str:
    """`name@host` or `Name <name@host>`."""
    header: Any = policy.SMTP.header_factory("to", text if text.isprintable() else "")
    address = header.addresses[0] if len(header.addresses) == 1 and not header.defects else None
    if address is None or not (address.username and address.domain) or not re.fullmatch(r"[!-~]+", address.addr_spec):
        raise ValueError("expected one mail address such as on-call@example.com, in ASCII")
    return text


Address = Annotated[str, AfterValidator(_one_address)]


class MailConfig(TransportConfig):
    """`tls`: `starttls` (then it is demanded), `tls` from the first byte, or `none`."""

    host: Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9.:_-]+$")]
    port: Annotated[int, Field(ge=1, le=65_535)] = 587
    tls: Literal["starttls", "tls", "none"] = "starttls"
    username: Secret | None = None
    password: Secret | None = None
    from_: Address = Field(alias="from")
    to: Annotated[tuple[Address, ...], Field(min_length=1, max_length=100)]
    ca_file: Path | None = Field(default=None, alias="caFile")

    @model_validator(mode="after")
    def _keeps_its_password(self) -> MailConfig:
        if (self.username is None) != (self.password is None):
            raise ValueError("expected `username` and `password` together, found one of them")
        if self.username is not None and self.tls == "none":
            raise ValueError("expected `tls: starttls` or `tls: tls` with a password, which else goes in the clear")
        return self

    def build(self) -> MailTransport:
        login = Login(self.username.reveal(), self.password.reveal()) if self.username and self.password else None
        server = SmtpServer(self.host, self.port, self.tls, login, self.ca_file)
        return MailTransport(server, self.from_, self.to)


class MailTransport:
    takes_groups: bool = True
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
        left = [address for address in map(addr_spec, self._recipients) if address not in self._reached.of(name)]
        replies = self._server.send(addr_spec(self._sender), left, mail.as_bytes(policy=policy.SMTP))
        if not isinstance(replies, Mapping):
            return replies
        self._reached.add(name, [address for address in left if address not in replies])
        outcome = _meaning(replies, len(self._recipients))
        if not isinstance(outcome, TryLater):
            self._reached.forget(name)
        return outcome

    def close(self) -> None:
        """Nothing is kept open."""


def addr_spec(text: str) -> str:
    """The address alone, of one with a name."""
    return str(policy.SMTP.header_factory("to", text).addresses[0].addr_spec)


def compose(notifications: Sequence[Notification], sender: str, recipients: Sequence[str]) -> EmailMessage:
    """The mail. `Message-ID` is the same at every attempt. The one that opens an incident has the incident's own, and
    all others refer to that."""
    said = message(notifications)
    host = addr_spec(sender).rpartition("@")[2]
    threads = [f"<incident-{_token(key)}@{host}>" for key in dict.fromkeys(_key(each) for each in notifications)]
    mail = EmailMessage(policy=policy.SMTP)
    mail["From"] = sender
    mail["To"] = ", ".join(recipients)
    mail["Subject"] = said.title.encode("utf-8", "replace").decode()
    mail["Date"] = format_datetime(datetime.now(UTC))
    if len(notifications) == 1 and notifications[0].body.get("type") == "incident.opened":
        mail["Message-ID"] = threads[0]
    else:
        mail["Message-ID"] = f"<lagloss-{_token('-'.join(str(each.id) for each in notifications))}@{host}>"
        mail["In-Reply-To"] = threads[-1]
        mail["References"] = " ".join(threads[-MAX_REFERENCES:])
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(as_text(said), cte="quoted-printable")
    mail.add_alternative(as_html(said), subtype="html", cte="quoted-printable")
    return mail


def _key(notification: Notification) -> str:
    return f"test-{notification.id}" if notification.action == "test" else notification.dedup_key


def _token(text: str) -> str:
    """The text where it can stand in a Message-ID, else its digest."""
    short = len(text) <= 64 and text.isascii() and text.replace("-", "").isalnum()
    return text if short else hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _meaning(refused: Mapping[str, Reply], recipients: int) -> Outcome:
    """One that is put off has all of them put off; else one that is refused is a failure that somebody should see,
    although the others have the mail."""
    if not refused:
        return Sent()
    told = one_line("; ".join(f"{address}: {reply}" for address, reply in refused.items()), 400)
    error = f"{len(refused)} of {recipients} recipients do not have it: {told}"
    return TryLater(error) if any(reply.is_for_now for reply in refused.values()) else Refused(error)
