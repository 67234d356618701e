"""What all transports' configurations have in common: keys that are not known are an error, values are not shown."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from alerting.delivery.transports.base import Transport


class TransportConfig(BaseModel):
    """One transport's part of a receiver in the alerting file. Its errors do not quote what was written."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, hide_input_in_errors=True)

    @abstractmethod
    def build(self) -> Transport:
        """Build the transport, its secrets resolved.

        Raises:
            SecretMissing: a secret is not where the configuration says.
            UnusableReceiver: what the configuration says cannot work; says why, and holds no secret.
        """


class HttpConfig(TransportConfig):
    """How far a transport that speaks HTTP may reach."""

    allow_private: bool = Field(default=False, alias="allowPrivate")
    """Whether it may go to addresses that are not public: this machine, the internal network."""
    ca_file: Path | None = Field(default=None, alias="caFile")
    """Certificates (PEM) of authorities to trust besides the public ones."""
