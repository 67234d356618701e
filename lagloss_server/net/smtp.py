"""Delivery of one mail to an SMTP server, within one deadline."""

from __future__ import annotations

import io
import re
import smtplib
import socket
import ssl
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from lagloss_server.net.addresses import resolve_within, system_resolver
from lagloss_server.net.deadline import Deadline
from lagloss_server.net.outcome import Refused, TryLater
from lagloss_server.net.sanitize import Redactor, one_line
from lagloss_server.net.tls import add_ca_file

TIMEOUT_S: Final = 30.0
"""Servers that delay unknown clients before their greeting do so for some seconds."""

_PART_BYTES: Final = 16_384


@dataclass(frozen=True, slots=True)
class SmtpLogin:
    username: str
    password: str

    def __repr__(self) -> str:
        return "SmtpLogin(***)"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the server; `text` holds no secret."""

    code: int
    text: str

    def __str__(self) -> str:
        return f"{self.code} {self.text}".strip()

    @property
    def is_transient(self) -> bool:
        """True if it may differ later (RFC 5321, 4.2.1)."""
        return 400 <= self.code < 500


class SmtpServer:
    """A mail server. Its address may be private: those of relays are."""

    def __init__(
        self,
        host: str,
        port: int,
        tls: Literal["starttls", "tls", "none"],
        login: SmtpLogin | None = None,
        ca_file: Path | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._login = login
        self._context = None if tls == "none" else add_ca_file(ssl.create_default_context(), ca_file)
        self._redact = Redactor(_secrets(login) if login else [])
        self.timeout_s = timeout_s

    def send(self, sender: str, recipients: Sequence[str], mail: bytes) -> Mapping[str, Reply] | Refused | TryLater:
        """Send the mail; return the recipients that the server refuses, with its reply to each.

        Never raises for a failure of the network or the server.
        """
        try:
            return self._deliver(sender, recipients, mail)
        except smtplib.SMTPResponseException as error:
            reply = self._reply(error.smtp_code, error.smtp_error)
            error_text = f"the mail server replied {reply}"
            # code -1 stands for a line that is no SMTP
            return Refused(error_text) if 500 <= reply.code < 600 else TryLater(error_text)
        except smtplib.SMTPNotSupportedError as error:
            return Refused(f"the mail server lacks a required feature: {self._redacted(error)}")
        except TimeoutError:
            return TryLater("the mail server did not respond in time")
        except (smtplib.SMTPException, OSError, ValueError) as error:  # ValueError: replies that are not SMTP
            return TryLater(f"{type(error).__name__}: {self._redacted(error)}")

    def _deliver(self, sender: str, recipients: Sequence[str], mail: bytes) -> Mapping[str, Reply]:
        deadline = Deadline(self.timeout_s)
        session = _Session(self._host, self._port, deadline, self._context if self._tls == "tls" else None)
        try:
            session.ehlo_or_helo_if_needed()
            if self._tls == "starttls":
                session.starttls(context=self._context)
            if self._login is not None:
                session.login(self._login.username, self._login.password)
            try:
                refused = session.sendmail(sender, recipients, mail)
            except smtplib.SMTPRecipientsRefused as error:
                refused = error.recipients
        finally:
            session.close()  # without QUIT: the server has accepted the mail, and might hang now
        return {address: self._reply(*reply) for address, reply in refused.items()}

    def _reply(self, code: int, text: bytes | str) -> Reply:
        return Reply(code, self._redacted(text.decode("utf-8", "replace") if isinstance(text, bytes) else text))

    def _redacted(self, text: object) -> str:
        return one_line(self._redact(str(text)), 300)


class _Session(smtplib.SMTP):
    """An SMTP session with a deadline: smtplib limits single steps only; here each step takes at most the remaining
    time.
    """

    def __init__(self, host: str, port: int, deadline: Deadline, tls: ssl.SSLContext | None) -> None:
        self._deadline = deadline
        self._tls = tls
        super().__init__(host, port, local_hostname=_own_name(), timeout=deadline.left_s())

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        connected = self._connected(host, port)
        if self._tls is None:
            return connected
        connected.settimeout(self._deadline.left_s())
        return self._tls.wrap_socket(connected, server_hostname=host)

    def _connected(self, host: str, port: int) -> socket.socket:
        addresses = resolve_within(system_resolver, host, port, self._deadline)
        failed = OSError("the mail server's host name has no address")
        for tried, address in enumerate(addresses):
            try:
                return socket.create_connection((address, port), self._deadline.left_s() / (len(addresses) - tried))
            except OSError as error:
                failed = error
        raise failed

    def send(self, s: bytes | str) -> None:  # type: ignore[override]
        # In parts: over TLS, Python restarts the time-out with each record.
        for start in range(0, max(len(s), 1), _PART_BYTES):
            if self.sock is not None:
                self.sock.settimeout(self._deadline.left_s())
            super().send(s[start : start + _PART_BYTES])

    def starttls(self, *, context: ssl.SSLContext | None = None) -> tuple[int, bytes]:  # type: ignore[override]
        return super().starttls(context=context)

    def getreply(self) -> tuple[int, bytes]:
        if self.file is None and self.sock is not None:
            self.file = io.BufferedReader(_TimedReader(self.sock, self._deadline))
        return super().getreply()


class _TimedReader(io.RawIOBase):
    """A reader of a socket until the deadline."""

    def __init__(self, connected: socket.socket, deadline: Deadline) -> None:
        self._socket = connected
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        self._socket.settimeout(self._deadline.left_s())
        return self._socket.recv_into(buffer)


def _secrets(login: SmtpLogin) -> list[str]:
    """Return the secrets, also encoded as they travel, since servers quote a line that they do not understand."""
    plain = [login.username, login.password, f"\0{login.username}\0{login.password}"]
    return [*plain, *(b64encode(text.encode()).decode() for text in plain)]


def _own_name() -> str:
    """Return the name in this machine's greeting: its full name if it has one.

    smtplib would ask the resolver, without a limit.
    """
    name = socket.gethostname()
    return name if re.fullmatch(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+", name) else "[127.0.0.1]"
