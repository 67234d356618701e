"""YAML of users: files read into models, with errors that name file, line and expectation, and texts written that can
be read again."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from yaml.composer import ComposerError

from lagloss_server.base.errors import BadDefinition
from lagloss_server.base.fields import MAX_SHOWN, NOT_STORABLE, is_storable
from lagloss_server.base.invalid import Invalid, explain
from lagloss_server.base.invalid import Path as KeyPath

Model = TypeVar("Model", bound=BaseModel)
STDIN: Final = Path("-")
MAX_FILE_BYTES: Final = 8 * 1024 * 1024
"""Of a YAML file, and of standard input: to read as much takes two minutes."""
_READ_AS: Final = {
    "tag:yaml.org,2002:bool": "a boolean",
    "tag:yaml.org,2002:int": "an integer",
    "tag:yaml.org,2002:float": "a number",
    "tag:yaml.org,2002:timestamp": "a date",
    "tag:yaml.org,2002:null": "nothing",
}
"""What YAML reads plain scalars as that people may have meant as text."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document of a YAML text. `number`: from 1; `is_alone`: it is the only document there. `folder`: where files
    that it names are."""

    source: str
    number: int
    is_alone: bool
    tree: yaml.Node | None
    data: Any
    folder: Path | None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is written there but comments."""
        return self.tree is None or (self.data is None and not self.tree.value)

    def read(self, model: type[Model], data: Any = None, notes: Mapping[KeyPath, str] | None = None) -> Model:
        """Read the document, or `data` made from it, into a model. `notes`: what to add to a problem at these places.

        Raises:
            BadDefinition: with file, line and expectation.
        """
        data = self.data if data is None else data
        for path in _unstorable(self.data):
            raise self.bad(Invalid(path, NOT_STORABLE))
        for path, key in _misread_keys(self.tree):
            problem = f"expected a key that is text: {_misreading(key) or 'YAML reads an empty key as nothing'}"
            raise self.bad(Invalid(path, problem), key.start_mark.line + 1)
        try:
            return model.model_validate(data, context={"folder": self.folder})
        except ValidationError as error:
            raise self.bad(self._explained(next(explain(error, data, model)), notes or {})) from error

    def bad(self, problem: Invalid, line: int | None = None) -> BadDefinition:
        """Return the error of a problem with this document; `line`: if it is not that of the problem's path."""
        line = _line_of(self.tree, problem.path) if line is None else line
        shown = problem if self.is_alone else f"document {self.number}: {problem}"
        return BadDefinition(source=self.source, line=line, problem=shown)

    def place(self, path: Sequence[int | str] = ()) -> str:
        """Return where a part of the document is: `orders.yaml:3`."""
        return f"{self.source}:{_line_of(self.tree, path)}"

    def _explained(self, problem: Invalid, notes: Mapping[KeyPath, str]) -> Invalid:
        """Add the note of its place to a problem, and to text that YAML has read as something else how it was
        written."""
        for path, note in notes.items():
            if problem.path[: len(path)] == path:
                return replace(problem, problem=f"{problem.problem} ({note})")
        node_ = _node_at(self.tree, problem.path)
        misreading = _misreading(node_) if problem.wants_text and isinstance(node_, yaml.ScalarNode) else None
        return problem if misreading is None else replace(problem, problem=f"{problem.problem}: {misreading}")


def _misreading(scalar: yaml.ScalarNode) -> str | None:
    """Return what YAML makes of a scalar that is not text, and how to write it as text; None if nothing is written."""
    if scalar.tag not in _READ_AS or not scalar.value:
        return None
    written = scalar.value if len(scalar.value) <= MAX_SHOWN else f"{scalar.value[:MAX_SHOWN]}…"
    return f"YAML reads {written} as {_READ_AS[scalar.tag]}, so quote it: '{written}'"


def _misread_keys(tree: yaml.Node | None, path: KeyPath = ()) -> Iterator[tuple[KeyPath, yaml.ScalarNode]]:
    """Yield the keys of a YAML tree that are not text, each with the path of its mapping."""
    if isinstance(tree, yaml.MappingNode):
        for key, value in tree.value:
            if isinstance(key, yaml.ScalarNode) and key.tag in _READ_AS:
                yield path, key
            yield from _misread_keys(value, (*path, key.value))
    if isinstance(tree, yaml.SequenceNode):
        for index, item in enumerate(tree.value):
            yield from _misread_keys(item, (*path, index))


def parse_documents(text: str, source: str, folder: Path | None = None) -> list[Document]:
    """Return the documents of a YAML text, empty ones included.

    Args:
        text: YAML, or JSON.
        source: the file's name, for errors.
        folder: where files that it names are, as the context of validators has it.

    Raises:
        BadDefinition: the text is not YAML; with file, line and, from the second document on, its number.
    """
    read: list[tuple[yaml.Node | None, Any]] = []
    try:
        for tree_and_data in _read(text):
            read.append(tree_and_data)
    except (
        yaml.YAMLError,
        ValueError,
        RecursionError,
    ) as error:  # ValueError: an invalid date; RecursionError: deep nesting
        mark = getattr(error, "problem_mark", None)
        problem = f"expected YAML, found {getattr(error, 'problem', None) or error}"
        if read:
            problem = f"document {len(read) + 1}: {problem}"
        raise BadDefinition(source=source, line=mark.line + 1 if mark else 1, problem=problem) from error
    return [Document(source, number, len(read) == 1, tree, data, folder) for number, (tree, data) in enumerate(read, 1)]


def parse_yaml(model: type[Model], text: str, source: str, folder: Path | None = None) -> Model:
    """Parse a YAML text of one document into a model; arguments as in `parse_documents`.

    Raises:
        BadDefinition: with file (`source`), line and expectation.
    """
    documents = parse_documents(text, source, folder) or [Document(source, 1, True, None, None, folder)]
    if len(documents) > 1:
        line = _line_of(documents[1].tree, ())
        raise BadDefinition(source=source, line=line, problem="expected a single document, found another one")
    return documents[0].read(model)


class _Loader(yaml.SafeLoader):
    """Reads no aliases: a few hundred bytes of them, merged into each other, take minutes and gigabytes. Nor a key
    twice, of which the first would go unread."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            raise ComposerError(
                None,
                None,
                f"the alias *{event.anchor}: aliases are not supported; write out the value",
                event.start_mark,
            )
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node_: yaml.MappingNode = super().compose_mapping_node(anchor)
        keys = set[str]()
        for key, _ in node_.value:
            if isinstance(key, yaml.ScalarNode) and key.value in keys:
                raise ComposerError(None, None, f"the key {key.value} twice", key.start_mark)
            keys.add(key.value if isinstance(key, yaml.ScalarNode) else "")
        return node_


def _joined(loader: _Loader, node: yaml.ScalarNode) -> str:
    """Return a text in which escapes of both halves of a surrogate pair, as JSON has them, are one character."""
    text = loader.construct_scalar(node)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


_Loader.add_constructor("tag:yaml.org,2002:str", _joined)


def _unstorable(part: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places of a document whose texts PostgreSQL cannot hold."""
    if isinstance(part, str) and not is_storable(part):
        yield path
    items = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for step, inner in items:
        if isinstance(step, str) and not is_storable(step):
            yield path
        yield from _unstorable(inner, (*path, step))


def _read(text: str) -> Iterator[tuple[yaml.Node | None, Any]]:
    """Yield the nodes of each document, and what they stand for. Raises YAMLError, ValueError, RecursionError."""
    loader = _Loader(text)
    try:
        while loader.check_node():
            tree = loader.get_node()
            yield tree, loader.construct_document(tree)
    finally:
        loader.dispose()


def load_documents(path: Path) -> list[Document]:
    """Return the documents of a file; `-` is standard input, and files that it names are in the current directory.

    Raises:
        BadDefinition: it cannot be read, or is not YAML.
    """
    if path == STDIN:
        return parse_documents(_text_of(path), "stdin", Path.cwd())
    return parse_documents(_text_of(path), str(path), path.parent)


def load_yaml(model: type[Model], path: Path) -> Model:
    """Read this file into a model; raise `BadDefinition` if it cannot be read or is malformed."""
    return parse_yaml(model, _text_of(path), str(path), path.parent)


def _text_of(path: Path) -> str:
    try:
        with nullcontext(sys.stdin.buffer) if path == STDIN else path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        text = raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BadDefinition(source=path, line=1, problem=f"expected a readable UTF-8 file, found {error}") from error
    if len(raw) > MAX_FILE_BYTES:
        problem = f"expected up to {MAX_FILE_BYTES:,} bytes; split it into several files"
        raise BadDefinition(source=path, line=1, problem=problem)
    return text


def _line_of(tree: yaml.Node | None, steps: Sequence[int | str]) -> int:
    """Return the line, from 1, of the deepest node of the YAML tree on this path. Steps that a model has and the text
    has not (the number of an item that stands alone) are skipped."""
    line = 1 if tree is None else tree.start_mark.line + 1
    for step in steps:
        child, mark = _child(tree, step)
        if child is not None and mark is not None:
            tree, line = child, mark
    return line


def _node_at(tree: yaml.Node | None, steps: Sequence[int | str]) -> yaml.Node | None:
    """Return the node of the YAML tree at the end of this path; None if it is not written."""
    for step in steps:
        tree, _ = _child(tree, step)
    return tree


def _child(tree: yaml.Node | None, step: int | str) -> tuple[yaml.Node | None, int | None]:
    if isinstance(tree, yaml.MappingNode):
        for key, value in tree.value:
            if key.value == step:
                return value, key.start_mark.line + 1
    if isinstance(tree, yaml.SequenceNode) and isinstance(step, int) and step < len(tree.value):
        return tree.value[step], tree.value[step].start_mark.line + 1
    return None, None


_OTHER_ELSEWHERE: Final = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+|0o[0-7]+|[yYnN]")
"""Plain texts that PyYAML reads as text, and other readers of YAML as numbers or booleans."""


class _Dumper(yaml.SafeDumper):
    """Writes no aliases, which `_Loader` does not read, and line breaks as escapes."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        # in single quotes PyYAML reads the breaks U+0085, U+2028 and U+2029 as others than it wrote
        is_plain = data.isprintable() and not _OTHER_ELSEWHERE.fullmatch(data)
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if is_plain else '"')


_Dumper.add_representer(str, _Dumper.represent_str)


def write_documents(documents: Iterable[object]) -> str:
    """Return documents as one YAML text, which reads back the same."""
    return _dumped(documents, width=120, explicit_start=True)


def write_flow(document: object) -> str:
    """Return a mapping or a list in one line: `{name: orders, to: [a, b]}`."""
    return _dumped([document], width=sys.maxsize, default_flow_style=True).rstrip("\n")


def write_line(entry: dict[str, str]) -> str:
    """Return an entry of a mapping in one line, without braces: `name: orders`."""
    return _dumped([entry], width=sys.maxsize).rstrip("\n")


def _dumped(documents: Iterable[object], **options: Any) -> str:
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, **options)
    return text


def comment(text: str) -> str:
    """Return a comment of one line with this text, whatever it holds: what would end the line, or is not allowed in
    YAML, is escaped as Python does."""
    return "# " + "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
