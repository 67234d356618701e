"""Who is logged in, as the shell shows it."""

from __future__ import annotations

import dash_mantine_components as dmc

from dashboard.pages.base import Part
from dashboard.who import LOCAL, asking


def account() -> Part | None:
    """The name and role of the person who asks; nothing where nobody has to log in."""
    person = asking()
    return None if person == LOCAL else dmc.Text(f"{person.name} ({person.role})", size="sm")
