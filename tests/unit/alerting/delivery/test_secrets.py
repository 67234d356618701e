"""Secrets of receivers: where they come from, and that they are not shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from alerting.delivery.transports.kinds import KINDS, build
from alerting.delivery.transports.pagerduty import PagerDutyConfig
from alerting.delivery.transports.webhook import WebhookConfig
from lagloss_server.base.errors import UnusableReceiver
from lagloss_server.net.secret import Secret, SecretMissing

VALUE = "s3cret-value"


def test_a_secret_comes_from_the_environment_a_file_or_the_text_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", VALUE)
    (tmp_path / "key").write_text(f"  {VALUE}\n")

    for given in ({"env": "A_KEY"}, {"file": str(tmp_path / "key")}, VALUE):
        assert Secret.parse(given).reveal() == VALUE


def test_a_secret_that_is_not_there_is_named_by_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("A_KEY", raising=False)
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")

    with pytest.raises(SecretMissing, match="environment variable A_KEY, found no such variable"):
        Secret.parse({"env": "A_KEY"}).reveal()
    for name, found in (("none", "No such file"), ("empty", "an empty file"), ("binary", "not UTF-8")):
        with pytest.raises(SecretMissing, match=f"{name}, found .*{found}"):
            Secret.parse({"file": str(tmp_path / name)}).reveal()
    with pytest.raises(SecretMissing, match="Is a directory"):
        Secret.parse({"file": str(tmp_path)}).reveal()


@pytest.mark.parametrize("given", ["", " ", 7, None, {}, {"env": ""}, {"env": "A", "file": "b"}, {"vault": "x"}, ["a"]])
def test_what_names_no_secret_is_an_error_of_the_configuration(given: object) -> None:
    with pytest.raises(ValidationError, match="expected text"):
        WebhookConfig.model_validate({"url": given})


def test_no_way_of_showing_a_configuration_shows_a_secret_written_in_it() -> None:
    config = WebhookConfig.model_validate({"url": f"https://h.example/{VALUE}", "secret": VALUE})

    shown = [repr(config), str(config), repr(config.secret), f"{config.secret}", config.model_dump_json()]
    shown.append(str(config.model_dump()))
    assert not [text for text in shown if VALUE in text]


def test_an_error_in_a_configuration_does_not_quote_the_secret_beside_it() -> None:
    for wrong in ({"url": VALUE, "secret": [VALUE]}, {"url": VALUE, VALUE: 1}, {"secret": VALUE}):
        with pytest.raises(ValidationError) as found:
            WebhookConfig.model_validate(wrong)
        messages = [error["msg"] for error in found.value.errors()]
        assert not [text for text in messages if VALUE in text]
        assert f"='{VALUE}'" not in str(found.value)


def test_a_routing_key_of_a_wrong_length_is_an_error_at_the_start_that_does_not_show_it() -> None:
    with pytest.raises(UnusableReceiver, match="32 characters, found 12") as found:
        build("pagerduty", PagerDutyConfig.model_validate({"routingKey": VALUE}))
    assert VALUE not in str(found.value)


@pytest.mark.parametrize(
    ("kind", "given", "problem"),
    [
        ("webhook", {"url": f"ftp://h.example/{VALUE}"}, "starts with https"),
        ("webhook", {"url": f"file:///{VALUE}"}, "starts with https"),
        ("webhook", {"url": f"https://h.example:{VALUE}/"}, "no URL"),
        ("webhook", {"url": f"https:///{VALUE}"}, "starts with https"),
        ("webhook", {"url": "https://h.example", "secret": f"{VALUE}!"}, "base64"),
        ("slack", {"url": VALUE}, "starts with https"),
        ("alertmanager", {"urls": ["http://am.example", VALUE]}, "starts with https"),
        ("apprise", {"urls": [f"nosuch://{VALUE}"]}, "number 1 is not one"),
        ("apprise", {"urls": ["json://h.example", VALUE]}, "number 2 is not one"),
        ("mail", {"host": "h", "from": "a@b.example", "to": ["c@d.example"], "caFile": "/none"}, "caFile"),
    ],
)
def test_a_receiver_that_cannot_work_is_an_error_at_the_start_that_shows_no_secret(
    kind: str, given: dict[str, object], problem: str
) -> None:
    with pytest.raises(UnusableReceiver, match=problem) as found:
        build(kind, KINDS[kind].model_validate(given))
    assert VALUE not in str(found.value)


@pytest.mark.parametrize(
    "given",
    [
        {"to": ["a@b.example\r\nBcc: x@y.example"]},
        {"to": ["a@b.example, c@d.example"]},
        {"to": ["nobody"]},
        {"to": []},
        {"from": "a b@c.example"},
        {"host": "h\r\nRSET"},
        {"username": "u"},
        {"username": "u", "password": "p", "tls": "none"},
        {"port": 0},
        {"tsl": "none"},
    ],
)
def test_a_mail_receiver_that_could_inject_headers_or_leak_its_password_is_refused(given: dict[str, object]) -> None:
    whole = {"host": "h", "from": "a@b.example", "to": ["c@d.example"], **given}
    with pytest.raises(ValidationError):
        KINDS["mail"].model_validate(whole)
