"""Mail: the server's configuration, valid addresses, and delivery to several recipients."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email import policy
from email.message import EmailMessage
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from lagloss_server.base.fields import like
from lagloss_server.net.outcome import Outcome, Refused, Sent, TryLater
from lagloss_server.net.sanitize import one_line
from lagloss_server.net.secret import Secret
from lagloss_server.net.smtp import TIMEOUT_S, Reply, SmtpLogin, SmtpServer


def _one_address(text: str) -> str:
    """Check that the text is `name@host` or `Name <name@host>`."""
    header: Any = policy.SMTP.header_factory("to", text if text.isprintable() else "")
    address = header.addresses[0] if len(header.addresses) == 1 and not header.defects else None
    if address is None or not (address.username and address.domain) or not re.fullmatch(r"[!-~]+", address.addr_spec):
        raise ValueError("expected one email address in ASCII, such as on-call@example.com")
    return text


Address = Annotated[str, AfterValidator(_one_address)]
Recipients = Annotated[tuple[Address, ...], Field(min_length=1, max_length=100)]


def addr_spec(address: str) -> str:
    """Return the bare address of one with a name."""
    return str(policy.SMTP.header_factory("to", address).addresses[0].addr_spec)


class ServerConfig(BaseModel):
    """Configuration of the mail server, and the sender.

    `tls`: `starttls` (then it is required), `tls` from the first byte, or `none`. Errors do not quote the input.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, hide_input_in_errors=True)

    host: Annotated[
        str, like(r"^[A-Za-z0-9.:_-]+$", "a host name or address", is_shown=False, min_length=1, max_length=255)
    ]
    port: Annotated[int, Field(ge=1, le=65_535)] = 587
    tls: Literal["starttls", "tls", "none"] = "starttls"
    username: Secret | None = None
    password: Secret | None = None
    from_: Address = Field(alias="from")
    ca_file: Path | None = Field(default=None, alias="caFile")

    @model_validator(mode="after")
    def _keeps_its_password(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("expected both `username` and `password` or neither, found only one")
        if self.username is not None and self.tls == "none":
            raise ValueError(
                "expected `tls: starttls` or `tls: tls`, since the password would otherwise be sent in clear text"
            )
        return self

    def server(self, timeout_s: float = TIMEOUT_S) -> SmtpServer:
        """Return the server, its secrets resolved. `timeout_s`: for one mail.

        Raises:
            SecretMissing: a secret is not where the configuration says.
            UnusableReceiver: the file of certificates holds none.
        """
        login = SmtpLogin(self.username.reveal(), self.password.reveal()) if self.username and self.password else None
        return SmtpServer(self.host, self.port, self.tls, login, self.ca_file, timeout_s)


@dataclass(frozen=True, slots=True)
class MailDelivery:
    """Outcome of a mail, and the recipients that have it now."""

    outcome: Outcome
    reached: tuple[str, ...] = ()


def send_mail(
    server: SmtpServer, mail: EmailMessage, recipients: Sequence[str], reached: frozenset[str]
) -> MailDelivery:
    """Send the mail to those recipients (addresses, perhaps with names) that are not `reached` yet.

    Never raises for a failure of the network or the server.
    """
    remaining = [address for address in dict.fromkeys(map(addr_spec, recipients)) if address not in reached]
    if not remaining:
        return MailDelivery(Sent())
    replies = server.send(addr_spec(str(mail["From"])), remaining, mail.as_bytes(policy=policy.SMTP))
    if not isinstance(replies, Mapping):
        return MailDelivery(replies)
    taken = tuple(address for address in remaining if address not in replies)
    return MailDelivery(_partial_outcome(replies, len(recipients)), taken)


def _partial_outcome(refused: Mapping[str, Reply], recipients: int) -> Outcome:
    """Return the outcome of partial refusals.

    If one recipient is deferred, all are; else a refused one makes a failure that must be visible, although the others
    have the mail.
    """
    if not refused:
        return Sent()
    replies = one_line("; ".join(f"{address}: {reply}" for address, reply in refused.items()), 400)
    error = f"the mail server rejected {len(refused)} of {recipients} recipients: {replies}"
    return TryLater(error) if any(reply.is_transient for reply in refused.values()) else Refused(error)
