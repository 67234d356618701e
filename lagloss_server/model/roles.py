"""What people may do with the dashboard."""

from __future__ import annotations

from typing import Literal

Role = Literal["viewer", "operator"]
"""`viewer`: may look. `operator`: may also act."""
