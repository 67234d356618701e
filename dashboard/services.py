"""What pages and the API share: one of each a process."""

from __future__ import annotations

from dataclasses import dataclass, field

from dashboard.threads import Threads
from lagloss.settings import Settings
from lagloss.store import Store


@dataclass(frozen=True, slots=True)
class Services:
    """`store`: what everything is read from. Handlers reach it in `threads`: they never block their event loop."""

    store: Store
    settings: Settings
    threads: Threads = field(default_factory=Threads)
