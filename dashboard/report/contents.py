"""What a scheduled report holds: of each pipeline some figures to read at once, and the documents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dashboard.report.ranges import Span
from dashboard.report.schedule_file import Format
from lagloss.store import Store


@dataclass(frozen=True, slots=True)
class Attachment:
    """A document. `kind`: its media type."""

    name: str
    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Part:
    """One pipeline's. `figures`: what each is called and its value, as people read them; `problem`: why there are
    none."""

    pipeline: str
    figures: tuple[tuple[str, str], ...] = ()
    attachments: tuple[Attachment, ...] = ()
    problem: str = ""


Maker = Callable[[Store, str, Span, tuple[Format, ...], float], Part]
"""Makes the part of a pipeline (by name) for a range, in these formats, as of now (epoch s).

Raises UnknownPipeline where there is none.
"""
