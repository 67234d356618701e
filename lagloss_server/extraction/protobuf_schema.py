"""Protobuf schemas, as text or compiled, as descriptors by which messages are read."""

from __future__ import annotations

import base64
import binascii
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, Final

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from lagloss.errors import ServerUnreachable
from lagloss_server.net.schema_registry import RegisteredSchema
from lagloss_server.ops.child_environment import foreign_environment
from lagloss_server.ops.processes import python, run

_WELL_KNOWN: Final = {
    module.DESCRIPTOR.name: module.DESCRIPTOR.serialized_pb
    for module in (
        any_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2,
    )
}  # fmt: skip
"""google/protobuf/….proto, which schemas import without a reference."""
_MAIN: Final = "lagloss_tap_schema.proto"
_CONFLUENT: Final = {
    "confluent/meta.proto": """syntax = "proto3"; package confluent; import "google/protobuf/descriptor.proto";
message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
""",
    "confluent/type/decimal.proto": """syntax = "proto3"; package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
""",
}
"""What Confluent's registry, and what writes to it, import without a reference, too, beside google/type/….proto."""
_BUILT_IN: Final = ".google.protobuf."
COMPILE_TIMEOUT_S: Final = 60.0


class BadProtobufSchema(ValueError):
    """The text is not a usable Protobuf schema."""


class ProtobufCompilerMissing(ServerUnreachable):
    """Compiling a Protobuf schema from text needs grpcio-tools, which is not installed. Run
    `pip install 'lagloss-server[protobuf]'`, or provide the compiled schema as a FileDescriptorSet in base64."""


@dataclass(frozen=True)
class ProtobufFile:
    """A compiled file of schemas, with all that it imports."""

    descriptor: Any
    """The FileDescriptor."""

    @classmethod
    @lru_cache(maxsize=32)  # each task of Spark makes its readers anew, and protoc is a process
    def given(cls, schema: str) -> ProtobufFile:
        """Return the file of a schema as an operator gives it: the text of a .proto, or a FileDescriptorSet in base64,
        whose last file it is.

        Raises:
            BadProtobufSchema: it is neither.
            ProtobufCompilerMissing: it is text.
        """
        try:
            raw = base64.b64decode("".join(schema.split()), validate=True)
        except (binascii.Error, ValueError):
            return cls._of_set(compile_proto(schema, {}))
        return cls._of_set(raw)

    @classmethod
    def registered(cls, schema: RegisteredSchema) -> ProtobufFile:
        """Return the file of a registry's schema.

        Raises:
            BadProtobufSchema: it cannot be used.
            ProtobufCompilerMissing: the registry does not compile it.
        """
        if not schema.descriptor or not all(schema.descriptors.values()):
            return cls._of_set(compile_proto(schema.text, schema.references))
        files = [_renamed(raw, name) for name, raw in (*schema.descriptors.items(), (_MAIN, schema.descriptor))]
        return cls._of_files(files)

    def message(self, name: str | None) -> Any:
        """Return the descriptor of the message with this name, full or within the file; None: the file has only one.

        Raises:
            BadProtobufSchema: there is no such message.
        """
        package = self.descriptor.package
        messages = dict(_messages(self.descriptor.message_types_by_name.values()))
        top = list(self.descriptor.message_types_by_name.values())
        if name is None:
            if len(top) == 1:
                return top[0]
            names = ", ".join(candidate.full_name for candidate in top[:10]) or "none"
            raise BadProtobufSchema(f"expected the name of a message, since the schema has several or none: {names}")
        message_ = messages.get(name) or messages.get(f"{package}.{name}")
        if message_ is None:
            raise BadProtobufSchema(f"expected a message of the schema ({', '.join([*messages][:10])}), found {name}")
        return message_

    def nested(self, indexes: Sequence[int]) -> Any:
        """Return the descriptor of the message that Confluent's indexes lead to: within the file, then within each.

        Raises:
            BadProtobufSchema: there is no such message.
        """
        level = list(self.descriptor.message_types_by_name.values())
        nested_message = None
        for index in indexes:
            if not 0 <= index < len(level):
                raise BadProtobufSchema("the schema has no message with these indexes")
            nested_message = level[index]
            # as Confluent's Java client counts: without the messages that protoc makes of a map's entries
            level = [
                nested_type for nested_type in nested_message.nested_types if not nested_type.GetOptions().map_entry
            ]
        return nested_message

    @classmethod
    def _of_set(cls, raw: bytes) -> ProtobufFile:
        try:
            files = list(descriptor_pb2.FileDescriptorSet.FromString(raw).file)
        except DecodeError:
            raise BadProtobufSchema("it is neither a .proto nor a FileDescriptorSet in base64") from None
        return cls._of_files(files)

    @classmethod
    def _of_files(cls, files: Sequence[Any]) -> ProtobufFile:
        """Return the last of these files. Each comes after those that it imports."""
        if not files:
            raise BadProtobufSchema("it has no file")
        pool = DescriptorPool()
        names = {given_file.name for given_file in files}
        try:
            for raw in [raw for name, raw in _WELL_KNOWN.items() if name not in names]:
                pool.AddSerializedFile(raw)
            defined: set[str] = set()
            for file_ in files:
                whole = _without_missing(file_, names | _WELL_KNOWN.keys(), defined)
                defined |= {f".{name}" for name in _defined(whole.package, whole)}
                pool.AddSerializedFile(whole.SerializeToString())
            return cls(pool.FindFileByName(files[-1].name))
        except (TypeError, KeyError) as error:  # what the pool raises where a file is not whole
            raise BadProtobufSchema(str(error)) from error


def compile_proto(text: str, imports: Mapping[str, str]) -> bytes:
    """Compile a .proto and what it imports into a FileDescriptorSet by protoc, which grpcio-tools brings.

    Raises:
        BadProtobufSchema: what protoc says.
        ProtobufCompilerMissing: it is not installed.
    """
    if find_spec("grpc_tools") is None:
        raise ProtobufCompilerMissing
    with tempfile.TemporaryDirectory(prefix="lagloss-proto-") as directory:
        root = Path(directory)
        for name, source in (*_CONFLUENT.items(), *imports.items(), (_MAIN, text)):
            parts = PurePosixPath(name).parts
            if not parts or parts[0] == "/" or ".." in parts or "\0" in name:
                raise BadProtobufSchema(f"it imports {name!r}, which is not a path below its own folder")
            path = root.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source, "utf-8")
        out = root / "descriptors.out"
        paths = [f"--proto_path={path}" for path in (root, *_google_types())]
        options = [*paths, "--include_imports", f"--descriptor_set_out={out}", _MAIN]
        try:
            done = run(
                python("grpc_tools.protoc", *options),
                environment=foreign_environment,
                cwd=root,
                timeout_s=COMPILE_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise BadProtobufSchema(f"protoc did not finish within {COMPILE_TIMEOUT_S:g} s") from None
        if done.returncode or not out.exists():
            raise BadProtobufSchema(done.stderr.strip().replace(f"{root}/", "")[:500] or "protoc failed")
        return out.read_bytes()


def _google_types() -> Iterator[Path]:
    """Yield the folder of google/type/….proto, which some libraries bring."""
    spec = find_spec("google.type")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(place).parent.parent


def _without_missing(file: Any, available: Set[str], defined: Set[str]) -> Any:
    """Return a file without imports that are not given, as registries have some built in: a field of their types is
    bytes or a number then, as it is written, and options are left out.

    Raises:
        BadProtobufSchema: a field is of a type that is written in neither way.
    """
    dependencies = [name for name in file.dependency if name in available]
    if len(dependencies) == len(file.dependency):
        return file
    whole = descriptor_pb2.FileDescriptorProto.FromString(file.SerializeToString())
    for name in ("dependency", "public_dependency", "weak_dependency", "extension", "service"):
        whole.ClearField(name)
    whole.dependency.extend(dependencies)
    defined_names = defined | {f".{name}" for name in _defined(whole.package, whole)}
    for message in _all_messages(whole.message_type):
        message.ClearField("extension")
        for field in message.field:
            is_given = field.type_name in defined_names or field.type_name.startswith(_BUILT_IN)
            if field.type_name.startswith(".") and not is_given:
                _make_plain(field)
    return whole


def _make_plain(field: Any) -> None:
    plain = {field.TYPE_MESSAGE: field.TYPE_BYTES, field.TYPE_ENUM: field.TYPE_INT32}.get(field.type)
    if plain is None:
        raise BadProtobufSchema(f"it has a field of unknown type {field.type_name}")
    field.type = plain
    field.ClearField("type_name")


def _defined(package: str, file: Any) -> Iterator[str]:
    """Yield the full names of a file's messages and enums."""

    def within(above: str, messages: Any, enums: Any) -> Iterator[str]:
        for definition in (*messages, *enums):
            yield f"{above}{definition.name}"
        for definition in messages:
            yield from within(f"{above}{definition.name}.", definition.nested_type, definition.enum_type)

    yield from within(f"{package}." if package else "", file.message_type, file.enum_type)


def _all_messages(level: Any) -> Iterator[Any]:
    for definition in level:
        yield definition
        yield from _all_messages(definition.nested_type)


def _renamed(raw: bytes, name: str) -> Any:
    try:
        file_ = descriptor_pb2.FileDescriptorProto.FromString(raw)
    except DecodeError:
        raise BadProtobufSchema(f"{name} from the registry is not a FileDescriptorProto") from None
    file_.name = name
    return file_


def _messages(level: Any) -> Any:
    """Yield the full name and descriptor of each message and of those within it."""
    for definition in level:
        yield definition.full_name, definition
        yield from _messages(definition.nested_types)
