"""Mail through a real SMTP server."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from alerting.delivery.transports.mail import MailConfig, MailTransport
from lagloss_server.net.outcome import Refused, Sent, TryLater
from lagloss_server.net.smtp import SmtpLogin, SmtpServer
from tests.fakes.certificates import certificate, server_context
from tests.fakes.mail import Mailbox, smtp_server
from tests.fakes.notifications import notification
from tests.fakes.raw_server import drip, raw_server

ADA, BOB, EVE = "ada@a.example", "bob@b.example", "eve@e.example"


def made(port: int, *to: str, **more: Any) -> MailTransport:
    config = {"host": "127.0.0.1", "port": port, "tls": "none", "from": "lagloss <lagloss@l.example>", "to": to, **more}
    return MailConfig.model_validate(config).build()


def test_a_mail_arrives_as_text_and_html_at_every_recipient() -> None:
    with smtp_server(Mailbox()) as mailbox:
        assert made(mailbox.port, f"Ada <{ADA}>", BOB).send([notification()]) == Sent()

    ((recipients, mail),) = mailbox.mails
    assert recipients == [ADA, BOB]
    assert mail["Subject"] == "[critical, opened] clicks: loss"
    assert mail["Auto-Submitted"] == "auto-generated"
    text, page = mail.get_body(("plain",)), mail.get_body(("html",))
    assert text is not None
    assert page is not None
    assert "Where:       link src->mid: 94 lost" in text.get_content()
    assert "link src-&gt;mid: 94 lost" in page.get_content()


def test_a_recipient_that_is_put_off_is_tried_again_alone() -> None:
    with smtp_server(Mailbox()) as mailbox:
        transport = made(mailbox.port, ADA, BOB)
        mailbox.answers = {BOB: "450 4.2.0 greylisted"}
        outcome = transport.send([notification()])
        assert outcome == TryLater(f"the mail server rejected 1 of 2 recipients: {BOB}: 450 4.2.0 greylisted")
        mailbox.answers = {}
        assert transport.send([notification()]) == Sent()

    assert [recipients for recipients, _ in mailbox.mails] == [[ADA], [BOB]]
    first, second = (mail["Message-ID"] for _, mail in mailbox.mails)
    assert first == second


def test_a_recipient_that_is_refused_is_told_although_the_others_have_the_mail() -> None:
    with smtp_server(Mailbox()) as mailbox:
        mailbox.answers = {EVE: "550 5.1.1 no such user"}
        outcome = made(mailbox.port, ADA, EVE).send([notification()])
    assert outcome == Refused(f"the mail server rejected 1 of 2 recipients: {EVE}: 550 5.1.1 no such user")
    assert [recipients for recipients, _ in mailbox.mails] == [[ADA]]


@pytest.mark.parametrize(
    ("answers", "kind"),
    [
        ({ADA: "550 no"}, Refused),
        ({ADA: "451 not now"}, TryLater),
        ({ADA: "421 closing"}, TryLater),
        ({"DATA": "554 looks like spam"}, Refused),
        ({"DATA": "452 full"}, TryLater),
    ],
)
def test_a_reply_of_the_four_hundreds_means_later_and_of_the_five_hundreds_never(
    answers: dict[str, str], kind: type
) -> None:
    with smtp_server(Mailbox()) as mailbox:
        mailbox.answers = answers
        outcome = made(mailbox.port, ADA).send([notification()])
    assert isinstance(outcome, kind)
    assert mailbox.mails == []


def test_a_server_that_demands_starttls_and_a_login_gets_both(tmp_path: Path) -> None:
    path = certificate(tmp_path)
    box = Mailbox("lagloss", "s3cret-word")
    with smtp_server(box, server_context(path), wants="starttls"):
        login = {"username": "lagloss", "password": "s3cret-word", "caFile": str(path)}
        assert made(box.port, ADA, tls="starttls", **login).send([notification()]) == Sent()
        assert box.sessions[0].authenticated
        assert box.sessions[0].ssl is not None

        wrong = made(box.port, ADA, tls="starttls", **{**login, "password": "s3cret-wrong"}).send([notification()])
        assert isinstance(wrong, Refused)
        assert "535" in wrong.error
        assert "s3cret" not in wrong.error

        without = made(box.port, ADA).send([notification()])
        assert isinstance(without, Refused)

        unknown = made(box.port, ADA, tls="starttls").send([notification()])
        assert isinstance(unknown, TryLater)
        assert "CERTIFICATE_VERIFY_FAILED" in unknown.error
    assert len(box.mails) == 1


def test_tls_from_the_first_byte_is_spoken(tmp_path: Path) -> None:
    path = certificate(tmp_path)
    with smtp_server(Mailbox(), server_context(path), wants="tls") as mailbox:
        assert made(mailbox.port, ADA, tls="tls", caFile=str(path)).send([notification()]) == Sent()


def test_a_server_without_starttls_gets_no_mail_in_the_clear() -> None:
    with smtp_server(Mailbox()) as mailbox:
        outcome = made(mailbox.port, ADA, tls="starttls").send([notification()])
    assert isinstance(outcome, Refused)
    assert mailbox.mails == []


@pytest.mark.parametrize("greeting", [b"", b"220 " + b"x" * 400, b"220-a\r\n" * 60])
def test_a_server_that_hangs_or_drips_is_given_up_at_the_limit(greeting: bytes) -> None:
    def behave(connection: socket.socket, over: threading.Event) -> None:
        drip(connection, over, greeting, 0.05)
        over.wait(10)

    with raw_server(behave) as port:
        server = SmtpServer("127.0.0.1", port, "none", timeout_s=0.5)
        began = time.monotonic()
        assert isinstance(server.send(ADA, [BOB], b"Subject: a\r\n\r\nb"), TryLater)
        assert time.monotonic() - began < 1.5


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 no\r\n", b"\xff\xfe\r\n", b"421 busy\r\n", b"220 ok\r\n"])
def test_a_server_that_says_strange_things_or_hangs_up_is_tried_later(greeting: bytes) -> None:
    with raw_server(lambda connection, _over: connection.sendall(greeting)) as port:
        outcome = SmtpServer("127.0.0.1", port, "none").send(ADA, [BOB], b"a")
    assert isinstance(outcome, TryLater)


def test_a_server_that_refuses_strangers_is_refused() -> None:
    with raw_server(lambda connection, _over: connection.sendall(b"554 go away\r\n")) as port:
        outcome = SmtpServer("127.0.0.1", port, "none").send(ADA, [BOB], b"a")
    assert outcome == Refused("the mail server replied 554 go away")


def test_a_password_that_the_server_quotes_is_not_told() -> None:
    def quote(connection: socket.socket, _over: threading.Event) -> None:
        connection.sendall(b"220 hello\r\n")
        stream = connection.makefile("rb")
        stream.readline()
        connection.sendall(b"250-hello\r\n250 AUTH PLAIN\r\n")
        line = stream.readline()
        connection.sendall(b"535 what is s3cret-word and " + line.strip() + b"\r\n")
        stream.readline()

    with raw_server(quote) as port:
        outcome = SmtpServer("127.0.0.1", port, "none", SmtpLogin("user-1", "s3cret-word")).send(ADA, [BOB], b"a")
    assert isinstance(outcome, Refused)
    assert outcome.error == "the mail server replied 535 what is *** and AUTH PLAIN ***"
