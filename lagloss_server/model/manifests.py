"""Manifests: the pipelines of files and folders, checked all together, with the defaults of their classes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lagloss.errors import UsageError
from lagloss_server.base.errors import BadDefinition, BadDefinitions
from lagloss_server.base.fields import describe
from lagloss_server.base.invalid import Invalid
from lagloss_server.base.invalid import Path as KeyPath
from lagloss_server.base.yaml_files import STDIN, Document, load_documents
from lagloss_server.model.defaults import ClassSettings, Defaults, classes_of, with_defaults
from lagloss_server.model.definition import Definition

KINDS: Final = ("Pipeline", "Defaults")
_SUFFIXES: Final = (".yaml", ".yml")
_NAME: Final = ("metadata", "name")
Label = tuple[str, str]
"""The name of a label and its value."""


@dataclass(frozen=True, slots=True)
class DeclaredPipeline:
    """A pipeline of a file. `origins`: the name of the `Defaults` for each value that it got from some."""

    definition: Definition
    document: Document
    origins: Mapping[KeyPath, str]

    @property
    def name(self) -> str:
        return self.definition.name


def read_manifests(paths: Iterable[Path], label: Label | None = None) -> list[DeclaredPipeline]:
    """Return the pipelines of files, `-` (standard input) and folders, in the order of their documents.

    Args:
        paths: of a folder, all files below it that end in .yaml or .yml, sorted, without hidden ones.
        label: that every pipeline has to have.

    Raises:
        BadDefinition: a document is invalid, or a pipeline occurs twice.
        BadDefinitions: several are.
        UsageError: there is no pipeline.
    """
    paths = list(paths)
    errors: list[BadDefinition] = []
    documents: list[Document] = []
    for path in _files_of(paths):
        with _collected(errors):
            documents += [document for document in load_documents(path) if not document.is_empty]
    by_kind: dict[str, list[Document]] = {kind: [] for kind in KINDS}
    for document in documents:
        with _collected(errors):
            by_kind[_kind_of(document)].append(document)
    classes = list(_classes_of(by_kind["Defaults"], errors))
    pipelines = list(_pipelines_of(by_kind["Pipeline"], classes, label, errors))
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise BadDefinitions(count=len(errors), problems="".join(f"\n{error}" for error in errors))
    if not pipelines:
        raise UsageError(detail=f"expected at least one pipeline in {', '.join(map(str, paths))}, found none")
    return pipelines


@contextmanager
def _collected(errors: list[BadDefinition]) -> Iterator[None]:
    """Add an error to these, and go on: all of them are reported together."""
    try:
        yield
    except BadDefinition as error:
        errors.append(error)


def _files_of(paths: Iterable[Path]) -> list[Path]:
    """Return the files of these paths, each once, though several paths lead to it."""
    files: dict[Path, Path] = {}
    for path in paths:
        for file in sorted(_files_below(path)) if path != STDIN and path.is_dir() else [path]:
            files.setdefault(file if file == STDIN else file.resolve(), file)
    return list(files.values())


def _files_below(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        # Path.rglob would skip the folder, and pruning delete its pipelines
        raise BadDefinition(source=error.filename, line=1, problem=f"expected a readable folder, found {error}")

    for parent, folders, names in os.walk(folder, onerror=refuse):
        # hidden: .git and .github, and the copies that Kubernetes keeps of a mounted ConfigMap
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.endswith(_SUFFIXES) and not name.startswith("."):
                yield Path(parent, name)


def _kind_of(document: Document) -> str:
    """Return the kind of a document; one that is not a mapping is read as a pipeline, which reports that.

    Raises:
        BadDefinition: with the kinds that are allowed.
    """
    if not isinstance(document.data, Mapping):
        return KINDS[0]
    kind = document.data.get("kind")
    if kind not in KINDS:
        kinds = " or ".join(map(repr, KINDS))
        shown = describe(kind) if "kind" in document.data else "none"
        raise document.bad(Invalid(("kind",), f"expected {kinds}, found {shown}"))
    return str(kind)


def _classes_of(documents: Iterable[Document], errors: list[BadDefinition]) -> Iterator[ClassSettings]:
    places: dict[str, str] = {}
    for document in documents:
        with _collected(errors):
            defaults = document.read(Defaults)
            _demand_once("defaults", defaults.name, document, places)
            yield from classes_of(defaults, document.data)


def _pipelines_of(
    documents: Iterable[Document],
    classes: Sequence[ClassSettings],
    label: Label | None,
    errors: list[BadDefinition],
) -> Iterator[DeclaredPipeline]:
    places: dict[str, str] = {}
    for document in documents:
        with _collected(errors):
            merged = with_defaults(document.data, classes)
            notes = {path: f"from the defaults {name}" for path, name in merged.origins.items()}
            definition = document.read(Definition, merged.data, notes)
            _demand_once("pipeline", definition.name, document, places)
            _demand_label(definition, document, label)
            yield DeclaredPipeline(definition, document, merged.origins)


def _demand_once(kind: str, name: str, document: Document, places: dict[str, str]) -> None:
    earlier = places.setdefault(name, document.place(_NAME))
    if earlier != document.place(_NAME):
        raise document.bad(Invalid(_NAME, f"expected each {kind} once, found {name} at {earlier} as well"))


def _demand_label(definition: Definition, document: Document, label: Label | None) -> None:
    if label is None:
        return
    name, value = label
    own = definition.metadata.labels.get(name)
    if own != value:
        problem = f"expected the label {name}={value}, which --prune is limited to"
        shown = "none" if own is None else f"{name}={own}"
        raise document.bad(Invalid(("metadata", "labels"), f"{problem}, found {shown}"))
