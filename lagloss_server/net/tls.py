"""Trusted certificate authorities: the public ones, and those that an operator adds."""

from __future__ import annotations

import ssl
from pathlib import Path

from lagloss_server.base.errors import UnusableReceiver


def add_ca_file(context: ssl.SSLContext, ca_file: Path | None) -> ssl.SSLContext:
    """Add the authorities (PEM) in the file to the context, and return it.

    Raises:
        UnusableReceiver: the file holds none.
    """
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:  # includes SSLError, for a file without certificates
            raise UnusableReceiver(
                problem=f"expected readable certificates in caFile {ca_file}, found {error}"
            ) from None
    return context
