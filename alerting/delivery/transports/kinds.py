"""Kinds of transports, by the names that the alerting file gives them."""

from __future__ import annotations

from typing import Final

from alerting.delivery.transports.alertmanager import AlertmanagerConfig
from alerting.delivery.transports.apprise_services import AppriseConfig
from alerting.delivery.transports.base import Transport, TransportConfig
from alerting.delivery.transports.mail import MailConfig
from alerting.delivery.transports.pagerduty import PagerDutyConfig
from alerting.delivery.transports.slack import SlackConfig
from alerting.delivery.transports.webhook import WebhookConfig

KINDS: Final[dict[str, type[TransportConfig]]] = {
    "pagerduty": PagerDutyConfig,
    "alertmanager": AlertmanagerConfig,
    "slack": SlackConfig,
    "webhook": WebhookConfig,
    "mail": MailConfig,
    "apprise": AppriseConfig,
}


def build(kind: str, config: TransportConfig) -> Transport:
    """Build the transport of this kind.

    Raises:
        SecretMissing: a secret is not where the configuration says.
        UnusableReceiver: what the configuration says cannot work.
    """
    if not isinstance(config, KINDS[kind]):
        raise TypeError(f"expected a configuration of {kind}, found a {type(config).__name__}")
    return config.build()
