"""What a discovery could connect of a cluster's topics and groups, and why not the rest, for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

SHOWN: Final = 3
"""Names of each reason."""


@dataclass(frozen=True, slots=True)
class Connected:
    """Of some topics, or groups: how many there are, and by the name of each that is not connected, why."""

    noun: str
    total: int
    reasons: Mapping[str, str]

    def lines(self) -> list[str]:
        """Return the share that is connected, and a line for each reason, the most frequent first."""
        names: defaultdict[str, list[str]] = defaultdict(list)
        for name, reason in sorted(self.reasons.items()):
            names[reason].append(name)
        connected = self.total - len(self.reasons)
        share = f" ({connected / self.total:.0%})" if self.total else ""
        head = f"{connected} of {self.total} {self.noun} connected{share}"
        ordered = sorted(names.items(), key=lambda item: (-len(item[1]), item[0]))
        return [head, *(f"  {len(some)} {reason}: {_shown(some)}" for reason, some in ordered)]


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(name if name.isprintable() else ascii(name) for name in names[:SHOWN]) + more


def why_groups_are_not_connected(groups: Mapping[str, Sequence[str]], reasons: Mapping[str, str]) -> dict[str, str]:
    """Return by group that reads no topic of a flow why: that of its first topic. `reasons`: by topic, why it is in no
    flow."""
    return {
        group: reasons[topics[0]] if topics else "nothing committed"
        for group, topics in groups.items()
        if all(topic in reasons for topic in topics)
    }
