"""Protobuf schemas of a registry as descriptors, and the places of messages in them."""

import base64
import binascii
import importlib
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from grpc_tools import protoc

from sluice.connectors.kafka.records.registry.registered_schema import (
    RegisteredSchema,
    UnknownSchemaError,
)
from sluice.runtime.errors import ConfigError

__all__ = ["ProtobufSchema", "file_text", "imports", "message_indexes", "schema_of_class"]

_MAIN = "sluice.registry.schema.proto"
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
_CONFLUENT = re.compile(r'import\s+(?:public\s+)?"(confluent/[\w/]+\.proto)"')
_KNOWN = ("google/protobuf/", "google/type/", "confluent/")
_COMPILE_S = 60.0
_MOST_SCHEMAS = 1_000


class ProtobufSchema:
    """The messages of one registered schema. Any thread."""

    def __init__(self, file: FileDescriptor) -> None:
        self._file = file

    @classmethod
    def of(cls, schema: RegisteredSchema) -> "ProtobufSchema":
        """The descriptors of a schema's text; compiled once in this process.

        Raises:
            UnknownSchemaError: it is a schema of another type.
            ConfigError: it cannot be compiled.
        """
        if schema.schema_type != "PROTOBUF":
            raise UnknownSchemaError(f"the schema with id {schema.name} is of {schema.schema_type}")
        return _compiled(schema.text, schema.named)

    def at(self, indexes: Sequence[int]) -> Descriptor:
        """The message at a place: of the top-level messages, then of those in it.

        Raises:
            ValueError: there is none.
        """
        found: Descriptor | None = None
        level = list(self._messages())
        for index in indexes:
            if not 0 <= index < len(level):
                raise ValueError(f"the schema has no message with the indexes {list(indexes)}")
            found = level[index]
            level = _nested(found)
        if found is None:
            raise ValueError("a record names no message of its schema")
        return found

    def named(self, name: str) -> Descriptor | None:
        """The message of a full name, also in an imported file."""
        try:
            return self._file.pool.FindMessageTypeByName(name)
        except KeyError:
            return None

    def message(self, name: str | None) -> Descriptor:
        """The message of a full name, or the first one.

        Raises:
            ConfigError: there is none.
        """
        found = self.named(name) if name else next(iter(self._messages()), None)
        if found is None:
            known = ", ".join(each.full_name for each in self._messages())
            raise ConfigError(
                "a Protobuf schema has no such message",
                {"message": name or "(the first)", "messages": known},
                "Give the full name of a message of the schema.",
            )
        return found

    def _messages(self) -> Iterable[Descriptor]:
        return self._file.message_types_by_name.values()


def message_indexes(message: Descriptor) -> list[int]:
    """The place of a message in its file."""
    found: list[int] = []
    inner: Descriptor = message
    while inner.containing_type is not None:
        outer = inner.containing_type
        found.insert(0, _nested(outer).index(inner))
        inner = outer
    names = list(inner.file.message_types_by_name)
    return [names.index(inner.name), *found]


def _nested(message: Descriptor) -> list[Descriptor]:
    """As Java's serializers count them: without the entries of maps, which protoc adds."""
    return [each for each in message.nested_types if not each.GetOptions().map_entry]


def file_text(file: FileDescriptor) -> str:
    """A file as registries take it beside its source text: its descriptor in base64."""
    return base64.standard_b64encode(file.serialized_pb).decode()


def schema_of_class(message: type[Message]) -> RegisteredSchema:
    """The schema of a generated class, with the files that it imports, as `file_text`."""
    named: dict[str, str] = {}

    def add_imports(file: Any) -> None:  # noqa: ANN401 - two classes in the stubs
        for each in file.dependencies:
            if each.name not in named and not each.name.startswith(_KNOWN):
                add_imports(each)
                named[each.name] = file_text(each)

    file: Any = message.DESCRIPTOR.file
    add_imports(file)
    return RegisteredSchema(
        text=file_text(file), schema_type="PROTOBUF", named=tuple(named.items())
    )


def imports(text: str) -> list[str]:
    """Names of the files that the file of a `file_text` imports."""
    return list(descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text)).dependency)


@lru_cache(maxsize=_MOST_SCHEMAS)
def _compiled(text: str, named: tuple[tuple[str, str], ...]) -> ProtobufSchema:
    pool = DescriptorPool()
    for file in _files({**dict(named), _MAIN: text}).file:
        pool.Add(file)
    return ProtobufSchema(pool.FindFileByName(_MAIN))


def _files(texts: Mapping[str, str]) -> descriptor_pb2.FileDescriptorSet:
    """The descriptors of files and of all that they import, in the order of their use."""
    made = descriptor_pb2.FileDescriptorSet()
    for name, text in texts.items():
        file = _decoded(name, text)
        if file is not None:
            made.file.append(file)
        imported = _CONFLUENT.findall(text) if file is None else file.dependency
        for known in sorted({*imported} - {each.name for each in made.file}):
            if known.startswith("confluent/"):
                made.file.add().ParseFromString(_of_confluent(known))
    with tempfile.TemporaryDirectory(prefix="sluice-proto-") as directory:
        root = Path(directory)
        for name, text in texts.items():
            path = root / name
            if root not in path.resolve().parents:
                raise _uncompiled(f"a file has the name {name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            if name not in {each.name for each in made.file}:
                path.write_text(text, encoding="utf-8")
        given, found = root / "given.bin", root / "found.bin"
        given.write_bytes(made.SerializeToString())
        options = [
            *(f"-I{path}" for path in (root, *_include_paths())),
            f"--descriptor_set_in={given}",
            "--include_imports",
            f"--descriptor_set_out={found}",
            _MAIN,
        ]
        if protoc.main(["protoc", *options]):
            raise _uncompiled(_messages_of(options))
        return descriptor_pb2.FileDescriptorSet.FromString(found.read_bytes())


def _decoded(name: str, text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """The descriptor whose base64 a text is, as confluent-kafka registers it; None: it is source
    text."""
    if not _BASE64.fullmatch(text):
        return None
    file = descriptor_pb2.FileDescriptorProto()
    try:
        file.ParseFromString(base64.b64decode(text))
    except (DecodeError, binascii.Error) as err:
        raise _uncompiled(f"{name}: {err}") from err
    file.name = name
    return file


def _of_confluent(name: str) -> bytes:
    """A file that Confluent's registry has built in, from confluent-kafka's package."""
    module_name = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    try:
        module = importlib.import_module(f"confluent_kafka.schema_registry.{module_name}")
    except ImportError as err:
        raise _uncompiled(f"{name} is not known") from err
    found: bytes = module.DESCRIPTOR.serialized_pb
    return found


def _include_paths() -> list[Path]:
    """Directories of the files that schemas import without a reference."""
    types = importlib.util.find_spec("google.type")
    places = list(types.submodule_search_locations or ()) if types else []
    return [Path(protoc.__file__).with_name("_proto"), *(Path(each).parents[1] for each in places)]


def _messages_of(options: Sequence[str]) -> str:
    """The compiler's messages: they go to standard error only, so it runs once more."""
    answer = subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", *options],
        capture_output=True,
        text=True,
        timeout=_COMPILE_S,
        check=False,
    )
    return answer.stderr.strip()[-500:]


def _uncompiled(why: str) -> ConfigError:
    return ConfigError(
        "a Protobuf schema cannot be compiled",
        {"why": why},
        "Correct the schema in the registry, and register what it imports as references.",
    )
