"""YAML of users: files read into models, with errors that name file, line and expectation, and texts written that can
be read again."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from yaml.composer import ComposerError

from lagloss_server.base.errors import BadDefinition
from lagloss_server.base.fields import NOT_STORABLE, is_storable
from lagloss_server.base.invalid import Invalid, explain

Model = TypeVar("Model", bound=BaseModel)


def parse_yaml(model: type[Model], text: str, source: str, folder: Path | None = None) -> Model:
    """Parse this YAML text into a model. `folder`: where files that it names are, as its validators' context says.

    Raises:
        BadDefinition: with file (`source`), line and expectation.
    """
    try:
        tree, data = _read(text)
    except (
        yaml.YAMLError,
        ValueError,
        RecursionError,
    ) as error:  # ValueError: an invalid date; RecursionError: deep nesting
        mark = getattr(error, "problem_mark", None)
        problem = f"expected YAML, found {getattr(error, 'problem', None) or error}"
        raise BadDefinition(source=source, line=mark.line + 1 if mark else 1, problem=problem) from error
    for path in _unstorable(data):
        raise BadDefinition(source=source, line=_line_of(tree, path), problem=Invalid(path, NOT_STORABLE))
    try:
        return model.model_validate(data, context={"folder": folder})
    except ValidationError as error:
        first = next(explain(error, data, model))
        raise BadDefinition(source=source, line=_line_of(tree, first.path), problem=first) from error


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


def _read(text: str) -> tuple[yaml.Node | None, Any]:
    """Return the nodes of a document, and what they stand for. Raises YAMLError, ValueError, RecursionError."""
    loader = _Loader(text)
    try:
        tree = loader.get_single_node()
        return tree, None if tree is None else loader.construct_document(tree)
    finally:
        loader.dispose()


def load_yaml(model: type[Model], path: Path) -> Model:
    """Read this file into a model; raise `BadDefinition` if it cannot be read or is malformed."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadDefinition(source=path, line=1, problem=f"expected a readable UTF-8 file, found {error}") from error
    return parse_yaml(model, text, str(path), path.parent)


def _line_of(tree: yaml.Node | None, steps: Sequence[int | str]) -> int:
    """Return the line, from 1, of the deepest node of the YAML tree on this path. Steps that a model has and the text
    has not (the number of an item that stands alone) are skipped."""
    line = 1
    for step in steps:
        child, mark = _child(tree, step)
        if child is not None and mark is not None:
            tree, line = child, mark
    return line


def _child(tree: yaml.Node | None, step: int | str) -> tuple[yaml.Node | None, int | None]:
    if isinstance(tree, yaml.MappingNode):
        for key, value in tree.value:
            if key.value == step:
                return value, key.start_mark.line + 1
    if isinstance(tree, yaml.SequenceNode) and isinstance(step, int) and step < len(tree.value):
        return tree.value[step], tree.value[step].start_mark.line + 1
    return None, None


class _Dumper(yaml.SafeDumper):
    """Writes no aliases, which `_Loader` does not read, and line breaks as escapes."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        # in single quotes PyYAML reads the breaks U+0085, U+2028 and U+2029 as others than it wrote
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if data.isprintable() else '"')


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
