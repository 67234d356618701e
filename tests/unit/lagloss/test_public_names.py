"""The public names of the SDK and their parameters, which stay as they are from version 1.0 on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

PUBLIC = {
    "lagloss.aiokafka": ("AIOKafkaNode", "AIONodeConsumer", "AIONodeProducer"),
    "lagloss": ("Emitter", "EmitterStats", "KafkaLanes", "MemoryOutlet", "Processing"),
    "lagloss.asgi": ("BeaconMiddleware", "current_identity"),
    "lagloss.files": ("FileNode", "NodeBucket", "NodeQueue", "QueuedFile"),
    "lagloss.identity": ("Identity", "from_headers", "from_json"),
    "lagloss.kafka": ("KafkaNode", "NodeConsumer", "NodeProducer"),
    "lagloss.sink": ("Batch", "batch"),
    "lagloss.spark": ("emit", "emit_now"),
    "lagloss.testing": ("LostMessage", "RecordedPipeline", "assert_no_loss", "recorded"),
    "lagloss_server.notebook": ("read_windows",),
}
EXPECTED = Path(__file__).with_name("public_names.txt")


def signature(function: Callable[..., Any]) -> str:
    """The parameters; `=` marks those with a default, `*` those by name only."""
    shown, is_by_name = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            shown.append(f"**{parameter.name}")
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not is_by_name:
            shown.append("*")
            is_by_name = True
        prefix = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        is_by_name |= bool(prefix)
        shown.append(f"{prefix}{parameter.name}" + ("" if parameter.default is parameter.empty else "="))
    return f"({', '.join(shown)})"


def described(module: str, name: str) -> Iterator[str]:
    named = getattr(import_module(module), name)
    yield f"{module}.{name}{signature(named)}"
    if not inspect.isclass(named):
        return
    ours = [kind for kind in reversed(inspect.getmro(named)) if kind.__module__.startswith("lagloss")]
    members = {member: value for kind in ours for member, value in vars(kind).items()}
    for member, value in sorted(members.items()):
        if member.startswith("_"):
            continue
        value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        yield f"    .{member}{signature(value)}" if inspect.isfunction(value) else f"    .{member}"


def test_the_public_names_and_their_parameters_are_these() -> None:
    lines = [line for module, names in PUBLIC.items() for name in names for line in described(module, name)]
    assert lines == EXPECTED.read_text().splitlines()


def test_a_module_exports_no_other_name() -> None:
    assert tuple(import_module("lagloss").__all__) == PUBLIC["lagloss"]
