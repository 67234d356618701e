"""Roles of the dashboard's users."""

from __future__ import annotations

from typing import Literal

Role = Literal["viewer", "operator"]
"""`viewer`: can read. `operator`: can also act."""
