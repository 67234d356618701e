"""Settings of lagloss, in one frozen class, read once at start.

An environment variable `LAGLOSS_…` wins over the endpoints of a running `lagloss up`, which win over the default here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from psycopg.conninfo import make_conninfo
from pydantic import AfterValidator, Field
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from lagloss.environment import secret
from lagloss_server.base.database_url import connection_options, without_password
from lagloss_server.base.errors import NotConfigured, SeveralRunning
from lagloss_server.base.instances import default_data_dir, find_running, read_endpoints
from lagloss_server.base.trace_links import checked_template

ENV_PREFIX: Final = "LAGLOSS_"
_FROM_ENDPOINTS: Final = {
    "kafka": "kafka_bootstrap",
    "database": "database_url",
    "dashboard": "dashboard_url",
    "collector": "collector_url",
    "aggregator": "aggregator_url",
    "alerting": "alerting_url",
    "taps": "taps_url",
    "canary": "canary_url",
    "dashboard_health": "dashboard_health_url",
}
SECRETS: Final = (
    *("database_url", "database_password", "alert_webhook_url", "oidc_client_secret"),
    *("heartbeat_url", "heartbeat_fail_url"),
)
"""Settings that may also come from a file, which the variable with `_FILE` names. A webhook's address is its own
password."""


class _SecretFiles(PydanticBaseSettingsSource):
    """Secrets in files, which `LAGLOSS_…_FILE` names."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        variable = f"{ENV_PREFIX}{field_name}".upper()
        return (secret(os.environ, variable) if field_name in SECRETS else ""), field_name, False

    def __call__(self) -> dict[str, Any]:
        values = {name: self.get_field_value(field, name)[0] for name, field in self.settings_cls.model_fields.items()}
        return {name: value for name, value in values.items() if value}


class Settings(BaseSettings):
    """The settings; `Settings.load()` reads them. Ports: 0 takes a free one. Empty text: not set."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore", env_ignore_empty=True)

    data_dir: Path = Field(
        default_factory=default_data_dir, description="directory where `up` stores data, logs and endpoints"
    )
    kafka_bootstrap: str = Field("", description="host:port,… of Kafka; empty: `up` runs an embedded broker")
    database_url: str = Field("", description="postgresql://… of PostgreSQL; empty: `up` runs an embedded server")
    database_password: str = Field("", description="password, if the URL has none")
    groups: str = Field("*", description="globs of the consumer groups to watch, separated by commas")
    topic_replication: int = Field(0, ge=0, description="replication factor of topics in Kafka; 0: min(3, brokers)")

    kafka_port: int = Field(0, ge=0, le=65535, description="port of the embedded broker")
    postgres_port: int = Field(0, ge=0, le=65535, description="port of the embedded PostgreSQL")
    dashboard_port: int = Field(0, ge=0, le=65535, description="port of the dashboard")
    collector_port: int = Field(0, ge=0, le=65535, description="port of the collector")
    metrics_port: int = Field(0, ge=0, le=65535, description="port of the aggregator's /healthz and /metrics")
    alerting_port: int = Field(0, ge=0, le=65535, description="port of the alerter's /healthz and /metrics")
    taps_port: int = Field(0, ge=0, le=65535, description="port of the taps' /healthz and /metrics")
    canary_port: int = Field(0, ge=0, le=65535, description="port of the canary's /healthz and /metrics")
    bind_address: str = Field("127.0.0.1", description="address that dashboard, collector and /metrics listen on")

    dashboard_url: str = Field("", description="URL of the dashboard for browsers")
    dashboard_health_url: str = Field("", description="URL of the dashboard's /healthz for other services")
    collector_url: str = Field("", description="URL of the collector")
    aggregator_url: str = Field("", description="URL of the aggregator's /healthz and /metrics")
    alerting_url: str = Field("", description="URL of the alerter's /healthz and /metrics")
    taps_url: str = Field("", description="URL of the taps' /healthz and /metrics")
    canary_url: str = Field(
        "", description="URL of the canary's /healthz and /metrics, and where alerting notifies it of its incidents"
    )
    trace_url: Annotated[str, AfterValidator(checked_template)] = Field(
        "", description="http(s)://…{trace_id}…: URL that shows a message's trace; empty: no links to traces"
    )

    login: Literal["", "local", "oidc", "proxy"] = Field("", description="login to the dashboard")
    login_operators: str = Field(
        "", description="a,b,…: groups of operators, who can make changes, with login oidc or proxy"
    )
    login_viewers: str = Field("", description="a,b,…: groups of viewers, who can read; *: every logged-in user")
    session_hours: int = Field(72, ge=1, description="lifetime of a session in hours")
    session_idle_hours: int = Field(8, ge=1, description="hours without requests after which a session ends")
    access_file: Path | None = Field(
        None, description="YAML file of teams and the pipelines that each can see; empty: every user sees all"
    )
    oidc_issuer: str = Field("", description="https://… of the OpenID provider, exactly as in its metadata")
    oidc_client_id: str = Field("", description="client id of the dashboard at the provider")
    oidc_client_secret: str = Field("", description="client secret of the dashboard at the provider")
    oidc_name_claim: str = Field("preferred_username", description="claim with the user's name; if absent, sub is used")
    oidc_role_claim: str = Field("groups", description="claim with the user's groups; a.b: a nested claim")
    proxy_trusted: str = Field("", description="a.b.c.d/n,…: networks of the trusted proxies")
    proxy_user_header: str = Field("X-Forwarded-User", description="header of the proxy with the user's name")
    proxy_roles_header: str = Field("X-Forwarded-Groups", description="header of the proxy with the user's groups")

    alerting_file: Path | None = Field(None, description="YAML file of receivers and routes; empty: the webhook below")
    alert_webhook_url: str = Field("", description="URL that incidents are posted to if there is no alerting file")
    canary: Literal["on", "off"] = Field("on", description="off: no canary")
    heartbeat_url: str = Field("", description="URL that is fetched each minute while the canary is right")
    heartbeat_fail_url: str = Field("", description="URL that is sent the reason once the canary is not right")
    reports_file: Path | None = Field(None, description="YAML file of scheduled reports; empty: none")
    spool_dir: str = Field(
        "",
        description="directory where the collector and services with the SDK store unsent flushes; empty: none",
    )
    verify_share: float = Field(
        0.01,
        ge=0,
        le=1,
        description="share of the windows proven by tallies that is also read, to check the proof",
    )
    spark_master: str = Field(
        "", description="Spark master of the aggregator; empty: that of spark-submit, else local[*]"
    )
    spark_driver_host: str = Field(
        "", description="host name of the aggregator as seen by the cluster; empty: this machine's name"
    )
    taps_spark_master: str = Field("", description="Spark master that reads taps; empty: the service reads them itself")
    spark_driver_memory: str = Field("2g", description="heap size of the aggregator's Spark driver")
    keep_names_days: int = Field(7, ge=1, description="retention of the names of missing messages, in days")
    keep_minutes_days: int = Field(
        35, ge=8, description="retention of windows, their history and consumer lag, in days"
    )
    keep_rollups_days: int = Field(
        730, ge=8, description="retention of hourly and daily roll-ups and of report runs, in days"
    )
    keep_quarantine_days: int = Field(7, ge=1, description="retention of bad records in quarantine, in days")
    keep_audit_days: int = Field(400, ge=30, description="retention of the audit trail, in days")
    log: Literal["text", "json"] = Field("text", description="format of log lines on stderr: text or json")
    log_level: str = Field("info", description="debug, info, warning or error")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read variables, then those that name a file."""
        return init_settings, env_settings, _SecretFiles(settings_cls)

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Read the environment, then the endpoints of a running `up` or demo; `overrides` (of a command line) win.

        If the environment names no data directory, the only running instance is used.

        Raises:
            pydantic.ValidationError: for a malformed variable.
            SeveralRunning: if several instances run and no data directory is given.
        """
        given_values = {key: value for key, value in overrides.items() if value is not None}
        settings = cls(**given_values)
        is_chosen = "data_dir" in settings.model_fields_set
        running = find_running(settings.data_dir if is_chosen else None)
        if len(running) != 1:
            if running and not (settings.kafka_bootstrap or settings.database_url):
                raise SeveralRunning(choices=", ".join(f"--data-dir {path}" for path in running))
            return settings
        endpoints = read_endpoints(running[0])
        missing = {field: endpoints[key] for key, field in _FROM_ENDPOINTS.items() if key in endpoints}
        unset = {field: value for field, value in missing.items() if not getattr(settings, field)}
        return settings.model_copy(update={**unset, "data_dir": running[0]})

    def require_kafka(self) -> str:
        """Return the bootstrap servers. Raises NotConfigured if none are known."""
        if not self.kafka_bootstrap:
            raise self._not_configured("Kafka", "LAGLOSS_KAFKA_BOOTSTRAP")
        return self.kafka_bootstrap

    def require_database(self) -> str:
        """Return the database's URL, or libpq's `key=value …` with the password. Raises NotConfigured if none is known,
        BadSetting if it is neither."""
        if not self.database_url:
            raise self._not_configured("PostgreSQL", "LAGLOSS_DATABASE_URL")
        options = connection_options(self.database_url)
        if not self.database_password:
            return self.database_url
        return make_conninfo(**{**options, "password": self.database_password})

    def _not_configured(self, what: str, variable: str) -> NotConfigured:
        where = f" in {self.data_dir}" if "data_dir" in self.model_fields_set else ""
        return NotConfigured(what=what, where=where, variable=variable)

    def printable(self) -> dict[str, str]:
        """Return every setting as text, secrets blanked."""
        shown = {name: "***" if name in SECRETS and value else str(value) for name, value in self.model_dump().items()}
        if self.database_url:
            shown["database_url"] = without_password(self.database_url)
        return shown

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value}' for name, value in self.printable().items())})"

    __str__ = __repr__
