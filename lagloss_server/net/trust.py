"""Whose certificates are believed: those of the public authorities, and of those that an operator adds."""

from __future__ import annotations

import ssl
from pathlib import Path

from lagloss_server.errors import UnusableReceiver


def believe(context: ssl.SSLContext, ca_file: Path | None) -> ssl.SSLContext:
    """Return the context, which from now on believes the authorities (PEM) in the file, too.

    Raises:
        UnusableReceiver: the file holds none.
    """
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:  # an SSLError, where it holds no certificate, is one
            raise UnusableReceiver(problem=f"expected certificates in caFile {ca_file}, found {error}") from None
    return context
