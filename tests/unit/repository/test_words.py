import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = (
    "lagloss",
    "lagloss_server",
    "aggregator",
    "canary",
    "collector",
    "alerting",
    "dashboard",
    "pipeline_under_test",
    "taps",
)
BANNED = re.compile(r"(?<![a-z`])(told|nobody|somebody)(?![a-z])", re.IGNORECASE)

TRANSLATED = re.compile(
    r"\b(is none|that is no|not known|heard of|whoever|so many|anew|likewise|come to|in hand|taken in|set aside)\b",
    re.IGNORECASE,
)
"""Phrases that a reader of English stumbles over."""

EMPTY: set[str] = {"found", "each", "here", "there", "one"}
"""Names of variables that do not tell what they hold."""


def _trees(package: str) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def _words(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each name that is bound, and of each docstring: of a module, class or attribute."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.lineno, node.attr
            case ast.alias(asname=str(name)):
                yield node.lineno, name
            case ast.Expr(ast.Constant(str(text))):
                yield node.lineno, text


def _texts(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield each text of several words that is not a docstring."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(str(text)) if " " in text and id(node) not in docstrings:
                yield node


def test_each_public_class_has_a_name_of_its_own() -> None:
    places = defaultdict(list)
    for package in PACKAGES:
        for path, tree in _trees(package):
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_names_and_docstrings_avoid_words_that_hide_the_subject(package: str) -> None:
    found = [
        f"{path}:{line}: {word.group()}"
        for path, tree in _trees(package)
        for line, text in _words(tree)
        if (word := BANNED.search(text))
    ]
    assert found == [], "\n".join(found)


@pytest.mark.parametrize("package", PACKAGES)
def test_variables_are_named_by_what_they_hold(package: str) -> None:
    empty = [
        f"{path}:{node.lineno}: {name}"
        for path, tree in _trees(package)
        for node in ast.walk(tree)
        if (name := node.arg if isinstance(node, ast.arg) else node.id if isinstance(node, ast.Name) else "") in EMPTY
    ]
    assert empty == [], "\n".join(empty)


@pytest.mark.parametrize("package", PACKAGES)
def test_texts_for_users_avoid_phrases_that_read_translated(package: str) -> None:
    translated = [
        f"{path}:{node.lineno}: {phrase.group()}"
        for path, tree in _trees(package)
        for node in _texts(tree)
        if (phrase := TRANSLATED.search(node.value))
    ]
    assert translated == [], "\n".join(translated)
