"""A real SMTP server (aiosmtpd) whose answers a test decides."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from lagloss_server.ops.processes import choose_port


class Mailbox:
    """`answers`: by recipient, or `DATA`, what is answered instead of a yes; `mails`: what was taken, to whom."""

    def __init__(self, username: str = "", password: str = "") -> None:
        self.answers: dict[str, str] = {}
        self.mails: list[tuple[list[str], EmailMessage]] = []
        self.sessions: list[Session] = []
        self.port = 0
        self._login = (username, password)

    async def handle_RCPT(  # noqa: N802
        self, _server: SMTP, session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        if address in self.answers:
            return self.answers[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        if "DATA" in self.answers:
            return self.answers["DATA"]
        content = envelope.content
        parsed: Any = message_from_bytes(content if isinstance(content, bytes) else b"", policy=policy.default)
        self.mails.append((list(envelope.rcpt_tos), parsed))
        self.sessions.append(session)
        return "250 taken"

    def authenticate(
        self, _server: SMTP, _session: Session, _envelope: Envelope, _mechanism: str, given: Any
    ) -> AuthResult:
        known = isinstance(given, LoginPassword) and (given.login.decode(), given.password.decode()) == self._login
        return AuthResult(success=known, handled=False)


@contextmanager
def smtp_server(mailbox: Mailbox, tls: ssl.SSLContext | None = None, *, wants: str = "none") -> Iterator[Mailbox]:
    """`wants`: `none`; `starttls` (and then a login); `tls` from the first byte."""
    more: dict[str, Any] = {}
    if wants == "starttls":
        more = {
            "tls_context": tls,
            "require_starttls": True,
            "auth_required": True,
            "authenticator": mailbox.authenticate,
        }
    controller = Controller(
        mailbox, hostname="127.0.0.1", port=choose_port("smtp"), ssl_context=tls if wants == "tls" else None, **more
    )
    controller.start()
    try:
        mailbox.port = controller.port
        yield mailbox
    finally:
        controller.stop()
