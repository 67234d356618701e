"""The sources by which the messages of a pipeline can be separated: those of versions with several."""

from __future__ import annotations

from collections.abc import Sequence

from lagloss.errors import UsageError
from lagloss_server.model.definition import StoredPipeline


def source_names(versions: Sequence[StoredPipeline]) -> list[str]:
    """Return the sources of all versions that have several, those of the newest version first."""
    several = [stored.definition.graph.sources for stored in reversed(versions)]
    return list(dict.fromkeys(name for sources in several if len(sources) > 1 for name in sources))


def demand_source(versions: Sequence[StoredPipeline], source: str) -> None:
    """Check that this is one of several sources of some version.

    Raises:
        UsageError: it is none.
    """
    sources = source_names(versions)
    if source not in sources:
        expected = ", ".join(sources) or "none, since it has a single source"
        raise UsageError(detail=f"expected a source of {versions[-1].name} ({expected}), found {source}")
