"""Plans: what applying declared pipelines would create, change and delete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, get_args

import msgspec
from msgspec import Struct

from lagloss_server.base.invalid import write_path
from lagloss_server.model.definition import StoredPipeline
from lagloss_server.model.definition_diff import ValueChange, differences
from lagloss_server.model.manifests import DeclaredPipeline, Label

Action = Literal["create", "change", "delete", "unchanged"]
ACTIONS: Final[tuple[Action, ...]] = get_args(Action)


class PlannedPipeline(Struct, frozen=True):
    """What is to be done with one pipeline. `version`: the newest one that is stored. `defaults`: by path, the name of
    the defaults that a value comes from. `note`: why differences are unknown."""

    pipeline: str
    action: Action
    version: int | None = None
    differences: tuple[ValueChange, ...] = ()
    defaults: dict[str, str] = {}
    note: str | None = None

    def lines(self) -> list[str]:
        """Return the plan of this pipeline as text: what is done, then each difference and other default, indented."""
        version = f" (version {self.version})" if self.version is not None else ""
        note = f": {self.note}" if self.note else ""
        shown = [str(difference) for difference in self.differences]
        if self.action in ("create", "change"):
            shown += [
                f"{path}: from the defaults {name}"
                for path, name in self.defaults.items()
                if not any(_is_within(difference.path, path) for difference in self.differences)
            ]
        return [f"{self.action:9} {self.pipeline}{version}{note}", *(f"    {line}" for line in shown)]


class ApplyPlan(Struct, frozen=True):
    """What is to be done with each pipeline that is declared, or to be deleted. `applied`: it has been done."""

    applied: bool
    pipelines: tuple[PlannedPipeline, ...]

    @property
    def would_change(self) -> bool:
        """Whether anything differs from what is stored."""
        return any(planned.action != "unchanged" for planned in self.pipelines)

    @property
    def deleted(self) -> list[str]:
        """The names of the pipelines to delete."""
        return [planned.pipeline for planned in self.pipelines if planned.action == "delete"]

    def lines(self) -> list[str]:
        """Return the plan as text, a summary last."""
        counts = Counter(planned.action for planned in self.pipelines)
        summary = ", ".join(f"{counts[action]} {_SUMMARY[action]}" for action in ACTIONS)
        return [*(line for planned in self.pipelines for line in planned.lines()), summary]

    def applied_as(self, versions: Sequence[int]) -> ApplyPlan:
        """Return the plan once it is applied, with the version numbers of the declared pipelines, in their order."""
        numbers = iter(versions)
        done = (
            planned if planned.action == "delete" else msgspec.structs.replace(planned, version=next(numbers))
            for planned in self.pipelines
        )
        return ApplyPlan(applied=True, pipelines=tuple(done))

    def outcome(self) -> list[str]:
        """Return what was done, a line for each pipeline."""
        return [
            f"{planned.pipeline}: {'deleted' if planned.action == 'delete' else f'version {planned.version}'}"
            for planned in self.pipelines
        ]

    def json(self) -> str:
        """Return the plan as a JSON document."""
        return msgspec.json.encode(self).decode()


_SUMMARY: Final[dict[Action, str]] = {
    "create": "to create",
    "change": "to change",
    "delete": "to delete",
    "unchanged": "unchanged",
}


def plan(
    declared: Sequence[DeclaredPipeline],
    stored: Iterable[StoredPipeline],
    unreadable: Mapping[str, str],
    prune: Label | None = None,
) -> ApplyPlan:
    """Return what applying these pipelines would do.

    Args:
        declared: the pipelines of files, in the order of the plan.
        stored: the newest version of each pipeline that can be read.
        unreadable: by name, why the newest version of another pipeline cannot be read.
        prune: delete the pipelines with this label that are not declared, by name, last in the plan.
    """
    newest = {version.name: version for version in stored}
    planned = [_planned(pipeline, newest.get(pipeline.name), unreadable) for pipeline in declared]
    names = {pipeline.name for pipeline in declared}
    if prune is not None:
        label, value = prune
        planned += [
            PlannedPipeline(name, "delete", version.version)
            for name, version in sorted(newest.items())
            if name not in names and version.definition.metadata.labels.get(label) == value
        ]
    return ApplyPlan(applied=False, pipelines=tuple(planned))


def _planned(
    pipeline: DeclaredPipeline, stored: StoredPipeline | None, unreadable: Mapping[str, str]
) -> PlannedPipeline:
    defaults = {write_path(path): name for path, name in pipeline.origins.items()}
    if stored is None:
        why = unreadable.get(pipeline.name)
        action: Action = "create" if why is None else "change"
        return PlannedPipeline(pipeline.name, action, defaults=defaults, note=why)
    changes = tuple(
        msgspec.structs.replace(change, defaults=_origin(change, defaults))
        for change in differences(stored.definition, pipeline.definition)
    )
    action = "change" if changes else "unchanged"
    return PlannedPipeline(pipeline.name, action, stored.version, changes, defaults)


def _origin(change: ValueChange, defaults: Mapping[str, str]) -> str | None:
    """Return the defaults that the value after a change comes from."""
    if change.after is msgspec.UNSET:
        return None
    return next((name for path, name in defaults.items() if _is_within(change.path, path)), None)


def _is_within(path: str, outer: str) -> bool:
    """Return whether a path is this one or below it: a list of defaults is one value, whose items have paths."""
    return path == outer or path.startswith((f"{outer}.", f"{outer}["))
