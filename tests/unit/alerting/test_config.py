from __future__ import annotations

from pathlib import Path

import pytest

from alerting.assembly import _route, notifier
from alerting.config import AlertingFile, load_alerting, with_canary
from alerting.delivery.transports.kinds import build
from alerting.incidents.routing import receivers_of
from lagloss.errors import UsageError
from lagloss_server.base.errors import BadDefinition
from lagloss_server.base.settings import Settings
from lagloss_server.base.yaml_files import parse_yaml
from lagloss_server.model.canary import CANARY, NOTICE_PATH

HEAD = "apiVersion: lagloss/v1\nkind: Alerting\n"
MAINTENANCE = """receivers: []
maintenance: [{name: m, match: [a=b], rrule: FREQ=DAILY, start: 2026-01-01T00:00, timezone: UTC, reason: r,
  duration: 1h}]
"""
WHOLE = (
    HEAD
    + """
receivers:
  - {name: on-call, pagerduty: {routingKey: {env: PD_KEY}}}
  - {name: chat, slack: {url: "https://hooks.example/services/T0/B0/secret"}}
  - {name: am, alertmanager: {urls: ["http://127.0.0.1:9093"], allowPrivate: true}}
  - {name: mail, mail: {host: smtp.example, port: 25, tls: none, from: lagloss@example.org, to: [sre@example.org]}}
routes:
  - match: [severity=critical]
    to: [on-call]
    repeat: 1h
    groupBy: [team]
    groupWait: 5s
    escalate: [{after: 15m, to: [mail]}]
    continue: true
  - {match: ["team=~check.*"], to: [chat]}
  - {to: [am]}
fallback: mail
maintenance:
  - name: nightly
    match: [pipeline=clicks]
    rrule: FREQ=DAILY;BYHOUR=2;BYMINUTE=0
    start: 2026-01-01T00:00
    timezone: Europe/Berlin
    duration: 1h
    reason: compaction
"""
)


def read(text: str) -> AlertingFile:
    return parse_yaml(AlertingFile, text, "alerting.yaml")


def test_a_whole_file_says_who_is_told_of_what(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PD_KEY", "0" * 32)
    file = read(WHOLE)
    assert [(each.name, each.kind) for each in file.receivers] == [
        ("on-call", "pagerduty"),
        ("chat", "slack"),
        ("am", "alertmanager"),
        ("mail", "mail"),
    ]
    transports = {each.name: build(each.kind, each.config) for each in file.receivers}
    said = notifier(file, transports)
    assert said.policy.fallback == "mail"
    assert dict(said.policy.resend_s) == {"am": 60}
    first = said.routes[0]
    assert (first.repeat_s, first.group_by, first.group_wait_s, first.continues) == (3_600, ("team",), 5, True)
    assert [(step.after_s, step.receivers) for step in first.escalations] == [(900, ("mail",))]
    assert [window.name for window in said.maintenance] == ["nightly"]


@pytest.mark.parametrize(
    ("wrong", "line", "expected"),
    [
        ("receivers:\n  - {name: a, pigeon: {}}", 4, "pigeon"),
        ("receivers:\n  - {name: a}", 4, "one of pagerduty, alertmanager"),
        ("receivers:\n  - {name: a, slack: {url: x}, webhook: {url: x}}", 4, "found slack, webhook"),
        ("receivers:\n  - name: a\n    slack:\n      url: x\n      uri: x", 7, "slack"),
        ("receivers: []\nroutes:\n  - to: [nobody]", 5, "nobody"),
        ("receivers: []\nfallback: nobody", 4, "nobody"),
        ("receivers: []\nroutes:\n  - match: [severity]\n    to: []", 5, "matcher"),
        ("receivers: []\nroutes:\n  - to: []\n    repeat: soon", 6, "duration"),
        ("receivers: []\nroutes:\n  - to: []\n    repeat: 0s", 6, "above 0"),
        ("receivers: []\nroutes:\n  - to: []\n    escalate: [{after: 1m, to: [a]}]", 5, "at least one receiver before"),
        (MAINTENANCE.replace("FREQ=DAILY", "DAILY"), 4, "RRULE"),
        (MAINTENANCE.replace("UTC", "Mars"), 4, "time zone"),
        (MAINTENANCE.replace("[a=b]", "[]"), 4, "match"),
        (MAINTENANCE.replace("match: [a=b], ", ""), 4, "match: expected a value, found none"),
        (MAINTENANCE.replace("T00:00", "T00:00Z"), 4, "offset"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(wrong: str, line: int, expected: str) -> None:
    with pytest.raises(BadDefinition) as refused:
        read(HEAD + wrong)
    assert str(refused.value).startswith(f"alerting.yaml:{line}: ")
    assert expected in str(refused.value)


def test_a_secret_that_is_not_there_is_named_and_no_error_shows_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PD_KEY", raising=False)
    file = read(WHOLE)
    with pytest.raises(UsageError, match="PD_KEY"):
        build("pagerduty", file.receivers[0].config)
    assert "secret" not in repr(file)
    with pytest.raises(BadDefinition) as refused:
        read(HEAD + "receivers:\n  - {name: a, slack: {url: https://hooks.example/secret, other: 1}}")
    assert "secret" not in str(refused.value)


def test_without_a_file_the_webhook_of_the_environment_hears_of_everything(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, alert_webhook_url="http://127.0.0.1:1/hook?token=secret")
    file = load_alerting(settings)
    assert [(each.name, each.kind) for each in file.receivers] == [("webhook", "webhook")]
    assert "token" not in repr(file)
    assert [route.to for route in file.routes] == [("webhook",)]
    assert load_alerting(Settings(data_dir=tmp_path)).receivers == ()


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadDefinition, match="readable"):
        load_alerting(Settings(data_dir=tmp_path, alerting_file=tmp_path / "none.yaml"))


def test_incidents_of_the_canary_go_to_it_alone_and_all_others_as_before() -> None:
    document = {"apiVersion": "lagloss/v1", "kind": "Alerting", "receivers": [], "routes": [{"to": []}]}
    file = AlertingFile.model_validate(
        {**document, "receivers": [{"name": "hook", "webhook": {"url": "http://x"}}], "routes": [{"to": ["hook"]}]}
    )
    routed = with_canary(file, "http://canary:8110/")
    assert [receiver.name for receiver in routed.receivers] == ["hook", CANARY]
    assert routed.receivers[1].webhook is not None
    assert routed.receivers[1].webhook.url.reveal() == f"http://canary:8110{NOTICE_PATH}"
    routes = [_route(route) for route in routed.routes]
    assert list(receivers_of(routes, {"pipeline": CANARY}, None)) == [CANARY]
    assert list(receivers_of(routes, {"pipeline": "clicks"}, None)) == ["hook"]
    without = [_route(route) for route in with_canary(file, "").routes]
    assert list(receivers_of(without, {"pipeline": CANARY}, None)) == []
