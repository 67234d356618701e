"""Alerting file: receivers, routes and maintenance windows. YAML that operators write, named by
LAGLOSS_ALERTING_FILE."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Final, Literal

import dateutil.rrule
from pydantic import Field, model_validator

from alerting.delivery.transports.alertmanager import AlertmanagerConfig
from alerting.delivery.transports.apprise_services import AppriseConfig
from alerting.delivery.transports.base import TransportConfig
from alerting.delivery.transports.kinds import KINDS
from alerting.delivery.transports.mail import MailConfig
from alerting.delivery.transports.pagerduty import PagerDutyConfig
from alerting.delivery.transports.slack import SlackConfig
from alerting.delivery.transports.webhook import WebhookConfig
from lagloss_server.base.fields import MAX_LISTED, MAX_RULE, DurationMs, Name, PositiveMs, Strict, Zone, refuse
from lagloss_server.base.settings import Settings
from lagloss_server.base.yaml_files import load_yaml
from lagloss_server.model.canary import CANARY, NOTICE_PATH, REMIND_S
from lagloss_server.model.matchers import MatcherList, Matchers

_GROUP_LABELS: Final = ("pipeline",)
MAX_TO: Final = 20
"""Receivers of a route or escalation, escalations of a route, and labels by which it groups."""
_Few: Final = Field(max_length=MAX_TO)
_Listed: Final = Field(max_length=MAX_LISTED)


class ReceiverSpec(Strict):
    """Receiver: a name, and one kind of transport with its settings."""

    name: Name
    pagerduty: PagerDutyConfig | None = None
    alertmanager: AlertmanagerConfig | None = None
    slack: SlackConfig | None = None
    webhook: WebhookConfig | None = None
    mail: MailConfig | None = None
    apprise: AppriseConfig | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> ReceiverSpec:
        if len(self._given()) != 1:
            kinds = ", ".join(self._given()) or "none of them"
            raise ValueError(f"expected {self.name} to have one of {', '.join(KINDS)}, found {kinds}")
        return self

    def _given(self) -> list[str]:
        return [kind for kind in KINDS if getattr(self, kind) is not None]

    @property
    def kind(self) -> str:
        return self._given()[0]

    @property
    def config(self) -> TransportConfig:
        config: TransportConfig = getattr(self, self.kind)
        return config


class EscalationSpec(Strict):
    """Further receivers to notify if the incident is not acknowledged `after` its opening."""

    after: DurationMs
    to: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MAX_TO)]


class RouteSpec(Strict):
    """Which incidents go to which receivers."""

    match: MatcherList = ()
    to: Annotated[tuple[Name, ...], _Few]
    continue_: bool = Field(default=False, alias="continue")
    repeat: PositiveMs = 4 * 3_600_000
    group_by: Annotated[tuple[str, ...], _Few] = Field(default=_GROUP_LABELS, alias="groupBy")
    group_wait: DurationMs = Field(default=0, alias="groupWait")
    escalate: Annotated[tuple[EscalationSpec, ...], _Few] = ()

    @model_validator(mode="after")
    def _escalates_from_receivers(self) -> RouteSpec:
        if self.escalate and not self.to:
            raise ValueError("expected `to` to name at least one receiver before `escalate`, found none")
        return self


class MaintenanceSpec(Strict):
    """Recurring window of time, during which matching incidents are not notified."""

    name: Name
    match: Matchers
    rrule: Annotated[str, Field(max_length=MAX_RULE)]
    start: datetime
    timezone: Zone = "UTC"
    duration: DurationMs
    reason: Annotated[str, Field(min_length=1)]

    @model_validator(mode="after")
    def _recurs(self) -> MaintenanceSpec:
        if self.start.tzinfo is not None:
            raise ValueError("expected `start` without a UTC offset, since `timezone` sets its time zone")
        try:
            self.recurrence()
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"expected an RFC 5545 RRULE such as FREQ=DAILY;BYHOUR=2;BYMINUTE=0, found {error}"
            ) from error
        return self

    def recurrence(self) -> dateutil.rrule.rrule:
        """Parse the window's starts, on the clock of its time zone.

        Raises:
            ValueError: it is not one rule.
        """
        rule = dateutil.rrule.rrulestr(self.rrule, dtstart=self.start)
        if not isinstance(rule, dateutil.rrule.rrule):
            raise ValueError("expected one RRULE, found several")  # noqa: TRY004  # of a text, not of a type
        return rule


class AlertingFile(Strict):
    """Receivers, routes, the fallback, maintenance windows."""

    api_version: Literal["lagloss/v1"] = Field(alias="apiVersion")
    kind: Literal["Alerting"]
    receivers: Annotated[tuple[ReceiverSpec, ...], _Listed]
    routes: Annotated[tuple[RouteSpec, ...], _Listed] = ()
    fallback: Name | None = None
    maintenance: Annotated[tuple[MaintenanceSpec, ...], _Listed] = ()

    @model_validator(mode="after")
    def _names_are_known(self) -> AlertingFile:
        names = [receiver.name for receiver in self.receivers]
        twice = (
            (("receivers", index), f"expected each receiver once, found {name} twice")
            for index, name in enumerate(names)
            if name in names[:index]
        )
        declared = ", ".join(names) or "none declared"
        refuse(
            [
                *twice,
                *(
                    (place, f"expected a receiver's name ({declared}), found {name}")
                    for place, name in self._named()
                    if name not in names
                ),
            ]
        )
        return self

    def _named(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Yield every use of a receiver's name, with its place."""
        for index, route in enumerate(self.routes):
            for number, name in enumerate(route.to):
                yield ("routes", index, "to", number), name
            for step, escalation in enumerate(route.escalate):
                for number, name in enumerate(escalation.to):
                    yield ("routes", index, "escalate", step, "to", number), name
        if self.fallback is not None:
            yield ("fallback",), self.fallback


def with_canary(file: AlertingFile, url: str) -> AlertingFile:
    """Return the file with a route of the canary's before all others, so that its incidents reach no receiver of the
    file. `url`: of the canary, which is their receiver; empty: they have none."""
    webhook = {"url": url.rstrip("/") + NOTICE_PATH, "allowPrivate": True}
    receivers = [ReceiverSpec.model_validate({"name": CANARY, "webhook": webhook})] if url else []
    to = [receiver.name for receiver in receivers]
    route = RouteSpec.model_validate({"match": [f"pipeline={CANARY}"], "to": to, "repeat": f"{REMIND_S}s"})
    return file.model_copy(update={"receivers": (*file.receivers, *receivers), "routes": (route, *file.routes)})


def load_alerting(settings: Settings) -> AlertingFile:
    """Load the file that the settings name; without one, use their webhook for everything; without either, no receiver.

    Raises:
        BadDefinition: with file, line and what was expected.
    """
    if settings.alerting_file is not None:
        return load_yaml(AlertingFile, settings.alerting_file)
    document: dict[str, Any] = {"apiVersion": "lagloss/v1", "kind": "Alerting", "receivers": []}
    if settings.alert_webhook_url:
        # Whoever sets the process's environment may well name a host of this network.
        webhook = {"url": settings.alert_webhook_url, "allowPrivate": True}
        document |= {"receivers": [{"name": "webhook", "webhook": webhook}], "routes": [{"to": ["webhook"]}]}
    return AlertingFile.model_validate(document)
