"""Which faults in the rules would be noticed, and by what: `python -m benchmarks.mutants [--sample N] [--seed S]`.

A mutant is one change of the code that judges windows: a comparison, a number, an operator, a condition, a returned
value. Each judges simulated minutes of the canary, from the records that the SDK made of them, and is killed if the
witness finds a minute wrong, or if it raises. Only lines that judge the canary's windows have mutants: what is of
sampling, several sources or proofs by tallies is for the tests. The plan and the records are made before, and the same
for all. What survives the canary is tried by the unit tests of the rules and the oracle, a minute or two each, unless
`--canary-only`. Printed are those that survive everything.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.util
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from benchmarks.figures import Figure, table

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = ("lagloss_server/judging",)
FILES: Final = ("aggregator/closing/judge.py", "aggregator/closing/context.py")
SAMPLE: Final = 100
MINUTES: Final = 60
GOAL: Final = 0.9
LIMIT_S: Final = 120.0
"""For one mutant; one that takes longer is killed: its window would never close."""
REIMPORTED: Final = ("aggregator", "lagloss_server")
TESTS: Final = ("tests/unit/lagloss_server/judging", "tests/unit/aggregator", "tests/oracle")
TESTS_LIMIT: Final = 3.0
"""How many times longer than with the rules as they are; a mutant whose tests take longer is killed."""
VARIABLE: Final = "LAGLOSS_MUTANT"
"""Tells `pytest -p benchmarks.mutants` which module has another source: MODULE=FILE."""
_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


@dataclass(frozen=True)
class Mutant:
    """A changed module."""

    path: Path
    line: int
    what: str
    tree: ast.Module

    @property
    def module(self) -> str:
        return ".".join(self.path.relative_to(ROOT).with_suffix("").parts)

    @property
    def source_line(self) -> str:
        return self.path.read_text("utf-8").splitlines()[self.line - 1].strip()

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} {self.what}"


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield what can stand in a node's place, each with its name."""
    changed: Any = copy.deepcopy(node)
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
            changed.ops = [_COMPARISONS[type(operator)]()]
            yield f"{type(operator).__name__} -> {type(changed.ops[0]).__name__}", changed
        case ast.BinOp(op=binary) if type(binary) in _OPERATORS:
            changed.op = _OPERATORS[type(binary)]()
            yield f"{type(binary).__name__} -> {type(changed.op).__name__}", changed
        case ast.BoolOp(op=ast.And()):
            changed.op = ast.Or()
            yield "and -> or", changed
        case ast.BoolOp(op=ast.Or()):
            changed.op = ast.And()
            yield "or -> and", changed
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not removed", operand
        case ast.Constant(value=bool(value)):
            yield f"{value} -> {not value}", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield f"{value} -> {value + 1}", ast.Constant(value + 1)
        case ast.IfExp():
            changed.body, changed.orelse = changed.orelse, changed.body
            yield "branches of a condition exchanged", changed
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield "returns None", ast.Return(ast.Constant(None))


class _Replace(ast.NodeTransformer):
    def __init__(self, number: int, replacement: ast.AST) -> None:
        self._number, self._replacement, self._count = number, replacement, -1

    def visit(self, node: ast.AST) -> Any:
        self._count += 1
        if self._count == self._number:
            return ast.copy_location(self._replacement, node)
        return self.generic_visit(node)


def in_order(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes in the order in which `_Replace` visits them."""
    yield node
    for child in ast.iter_child_nodes(node):
        yield from in_order(child)


def mutants_of(path: Path, lines: set[int]) -> Iterator[Mutant]:
    """Yield the mutants of the lines of a file."""
    tree = ast.parse(path.read_text("utf-8"))
    annotations = {id(part) for node in ast.walk(tree) for part in _annotation(node)}
    for number, node in enumerate(in_order(tree)):
        line = getattr(node, "lineno", 0)
        if line not in lines or id(node) in annotations:
            continue
        for what, replacement in changes(node):
            mutated = _Replace(number, replacement).visit(copy.deepcopy(tree))
            yield Mutant(path, line, what, ast.fix_missing_locations(mutated))


def _annotation(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of what says of which type something is, which nothing evaluates."""
    for name in ("annotation", "returns"):
        if (found := getattr(node, name, None)) is not None:
            yield from ast.walk(found)


class _Mutated:
    """An importer that has another source for one module."""

    def __init__(self, module: str, code: CodeType) -> None:
        self._module = module
        self._code = code

    def find_spec(self, name: str, _path: object, _target: object = None) -> Any:
        if name != self._module:
            return None
        return importlib.util.spec_from_loader(name, self, origin=self._code.co_filename)  # type: ignore[arg-type]

    def create_module(self, _spec: object) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        exec(self._code, module.__dict__)


def pytest_load_initial_conftests() -> None:
    """As a plugin: let the tests import a mutant."""
    module, _, path = os.environ.get(VARIABLE, "").partition("=")
    if module:
        sys.meta_path.insert(0, _Mutated(module, compile(Path(path).read_text("utf-8"), path, "exec")))


@dataclass(frozen=True)
class Simulation:
    """Simulated minutes: their plans, and what the log holds."""

    plans: Sequence[Any]
    world: Any

    @classmethod
    def make(cls, minutes: int) -> Simulation:
        from tests.support.canary_past import simulate

        return cls(*simulate(minutes))

    def wrong(self) -> str:
        """Return what the witness finds wrong first; empty if every minute is right."""
        judged = importlib.import_module("tests.support.canary_past").judged
        for plan in self.plans:
            problems = judged(self.world, plan).problems
            if problems:
                return str(problems[0])
        return ""


def executed(simulation: Simulation, paths: Sequence[Path]) -> dict[Path, set[int]]:
    """Return the lines of these files that judging the minutes runs."""
    lines: dict[str, set[int]] = {str(path): set() for path in paths}

    def trace(frame: FrameType, _event: str, _argument: object) -> Any:
        seen = lines.get(frame.f_code.co_filename)
        if seen is None:
            return None

        def line(inner: FrameType, event: str, _argument: object) -> Any:
            if event == "line":
                seen.add(inner.f_lineno)
            return line

        return line

    sys.settrace(trace)
    try:
        assert not simulation.wrong(), "the rules as they are have to be right"
    finally:
        sys.settrace(None)
    return {Path(name): seen for name, seen in lines.items()}


def verdict(simulation: Simulation, mutant: Mutant) -> str:
    """Return why a mutant is killed, from a process of its own; empty if it survives."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            why = _judged_by(simulation, mutant)
        except BaseException as error:
            why = f"{type(error).__name__}: {traceback.format_exception_only(error)[-1].strip()}"
        os.write(write, why[:2_000].encode())
        os._exit(0)
    os.close(write)
    ready, _, _ = select.select([read], [], [], LIMIT_S)
    why = os.read(read, 2_000).decode(errors="replace") if ready else f"no answer within {LIMIT_S:.0f} s"
    if not ready:
        os.kill(child, signal.SIGKILL)
    os.close(read)
    os.waitpid(child, 0)
    return why


def _judged_by(simulation: Simulation, mutant: Mutant) -> str:
    for name in list(sys.modules):
        if name.partition(".")[0] in REIMPORTED or name in ("tests.support.in_memory", "tests.support.canary_past"):
            del sys.modules[name]
    code: CodeType = compile(mutant.tree, str(mutant.path), "exec")
    sys.meta_path.insert(0, _Mutated(mutant.module, code))
    return simulation.wrong()


def is_killed_by_tests(mutant: Mutant | None, limit_s: float | None = None) -> bool:
    """Return whether a test of the rules fails with this mutant, or takes longer than `limit_s`; without a mutant,
    whether they fail as they are."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        if mutant is not None:
            file.write(ast.unparse(mutant.tree))
            file.flush()
        variable = {} if mutant is None else {VARIABLE: f"{mutant.module}={file.name}"}
        options = ("-p", "benchmarks.mutants", "-x", "-q", "--force-reruns", "0", "-m", "not slow")
        command = [sys.executable, "-m", "pytest", *options, *TESTS]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, **variable},
                capture_output=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return True
    return done.returncode != 0


def run(sample: int = SAMPLE, seed: int = 1, minutes: int = MINUTES, *, canary_only: bool = False) -> list[Figure]:
    """Print each mutant that survives, and return the shares of those that are killed."""
    began_s = time.monotonic()
    if not canary_only and is_killed_by_tests(None):
        raise SystemExit("the tests of the rules as they are fail")
    limit_s = TESTS_LIMIT * (time.monotonic() - began_s)
    simulation = Simulation.make(minutes)
    paths = [
        *(path for folder in FOLDERS for path in sorted((ROOT / folder).glob("*.py"))),
        *(ROOT / name for name in FILES),
    ]
    lines = executed(simulation, paths)
    everything = [mutant for path in paths for mutant in mutants_of(path, lines[path])]
    chosen = random.Random(seed).sample(everything, min(sample, len(everything)))
    began_s = time.monotonic()
    survivors = [mutant for mutant in chosen if not verdict(simulation, mutant)]
    print(f"{len(everything):,} mutants, {len(chosen)} tried in {time.monotonic() - began_s:.0f} s")
    killed = 1 - len(survivors) / len(chosen)
    figures = [Figure("mutants that the canary kills", killed, "", GOAL, more_is_better=True)]
    if not canary_only:
        survivors = list(_survivors_of_tests(survivors, limit_s))
        killed = 1 - len(survivors) / len(chosen)
        figures.append(Figure("that the canary, tests or the oracle kill", killed, "", 1.0, more_is_better=True))
    else:
        for mutant in survivors:
            _show(mutant)
    return figures


def _survivors_of_tests(mutants: Sequence[Mutant], limit_s: float) -> Iterator[Mutant]:
    """Print and yield the mutants that no test kills, each once it is tried: hours can pass until the last."""
    for mutant in mutants:
        if not is_killed_by_tests(mutant, limit_s):
            _show(mutant)
            yield mutant


def _show(mutant: Mutant) -> None:
    print(f"survives: {mutant}\n    {mutant.source_line}", flush=True)


def main() -> None:
    """Try as many mutants as the command line says, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=SAMPLE)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=int, default=MINUTES)
    parser.add_argument("--canary-only", action="store_true", help="do not run the tests")
    arguments = parser.parse_args()
    figures = run(arguments.sample, arguments.seed, arguments.minutes, canary_only=arguments.canary_only)
    print(table(figures))
    sys.exit(not all(figure.is_met for figure in figures))


if __name__ == "__main__":
    main()
