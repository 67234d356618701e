"""Times in the viewer's zone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from lagloss_server.base import format as fmt
from lagloss_server.base.errors import BadZone

UTC_NAME: Final = "UTC"


@cache
def names() -> tuple[str, ...]:
    """Return the names of all zones, UTC first."""
    zone_names = {name for name in available_timezones() if "/" in name and not name.startswith(("Etc/", "SystemV/"))}
    return UTC_NAME, *sorted(zone_names)


@dataclass(frozen=True, slots=True)
class Zone:
    """A zone of the IANA database by its name; `Zone.named` makes it."""

    name: str
    info: tzinfo

    @classmethod
    def named(cls, name: str | None) -> Zone:
        """None: UTC.

        Raises:
            BadZone: there is none of this name.
        """
        if not name or name == UTC_NAME:
            return cls(UTC_NAME, UTC)
        try:
            return cls(name, ZoneInfo(name))
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise BadZone(text=name) from error

    @classmethod
    def shown(cls, name: str | None) -> Zone:
        """Return the zone as `named`; UTC for an unknown name."""
        try:
            return cls.named(name)
        except BadZone:
            return cls.named(None)

    def at(self, epoch_s: float) -> datetime:
        return fmt.datetime_of(epoch_s, self.info)

    def typed(self, epoch_s: float) -> str:
        """Return the value of a date picker, which knows no zone; `parse` reads it."""
        return self.clock(epoch_s, seconds=True, date=True)

    def parse(self, typed: str, *, later: bool = False) -> float:
        """Epoch s of what a date picker holds, which knows no zone. Of a time that comes twice since the clocks go
        back, the first; the second with `later`.

        Raises:
            ValueError: it is no date and time.
        """
        first, second = (
            datetime.fromisoformat(typed).replace(tzinfo=self.info, fold=fold).timestamp() for fold in (0, 1)
        )
        return max(first, second) if later else first

    def is_twice(self, epoch_s: float) -> bool:
        """Return whether its clock shows this time twice, since the clocks go back."""
        local = self.at(epoch_s)
        return local.utcoffset() != local.replace(fold=1 - local.fold).utcoffset()

    def precise(self, epoch_ms: float) -> str:
        """`09:40:07.123`."""
        return f"{self.clock(epoch_ms / 1_000, seconds=True)}.{int(epoch_ms) % 1_000:03d}"

    def clock(self, epoch_s: float, *, seconds: bool = False, date: bool = False) -> str:
        """`09:40`, `09:40:07` or `2026-11-21 09:40`; `label` says in which zone."""
        return fmt.clock(epoch_s, self.info, seconds=seconds, date=date)

    def label(self, epoch_s: float) -> str:
        """Return the zone's abbreviation then: `UTC`, `CET`, or `UTC+05:45` for one without letters."""
        name = self.at(epoch_s).strftime("%Z")
        return name if name.isalpha() else self.offset(epoch_s)

    def offset(self, epoch_s: float) -> str:
        """`UTC`, `UTC+01:00`."""
        ahead = self.at(epoch_s).utcoffset() or timedelta(0)
        return timezone(ahead).tzname(None)

    def moment(self, epoch_s: float, *, seconds: bool = False) -> str:
        """`2026-11-21 09:40 CET`."""
        return f"{self.clock(epoch_s, seconds=seconds, date=True)} {self.label(epoch_s)}"

    def minute(self, window_start_s: int) -> str:
        """`2026-11-21 09:40–09:41 CET`."""
        return f"{self.clock(window_start_s, date=True)}–{self.clock(window_start_s + 60)} {self.label(window_start_s)}"


def utc(epoch_s: float, *, seconds: bool = False) -> str:
    """`2026-11-21 08:40 UTC`: what stands behind every local time, on hover."""
    return Zone.named(None).moment(epoch_s, seconds=seconds)
