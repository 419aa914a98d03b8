"""Mutants of schema registries and of Avro columns."""

from tests.mutants.model import Edit, Mutant

_CLIENT = "tests/unit/connectors/kafka/records/registry/test_registry_client.py"
_AVRO = "tests/unit/connectors/kafka/records/registry/test_avro_deserializer.py"
_SCHEMAS = "tests/unit/connectors/kafka/records/serde/test_avro_schemas.py"
_COLUMNS = "tests/property/test_avro_columns.py"
_PROTOBUF = "tests/unit/connectors/kafka/records/registry/protobuf/test_protobuf_values.py"
_WRITING = "tests/unit/connectors/kafka/records/registry/test_json_and_protobuf_writing.py"
_REGISTRY = "sluice.connectors.kafka.records.registry"
_SERDE = "sluice.connectors.kafka.records.serde"

MUTANTS = (
    Mutant(
        name="registry-down-is-a-bad-record",
        rules=(),
        wrong="A registry that is overloaded counts as one that lacks the schema.",
        catchers=(f"{_CLIENT}::test_a_registry_that_stays_away_is_no_bad_record",),
        edits=(
            Edit(
                function=f"{_REGISTRY}.registry_client:_may_pass",
                old="return status in (*_REFUSED, 408, 425, 429) or status >= 500",
                new="return False",
            ),
        ),
    ),
    Mutant(
        name="registry-url-is-not-checked",
        rules=(),
        wrong="A 404 of any server counts as an unknown schema.",
        catchers=(f"{_CLIENT}::test_a_url_of_another_server_is_no_bad_record",),
        edits=(
            Edit(
                function=f"{_REGISTRY}.registry_client:RegistryClient._require_registry",
                old="is_certain = err.error_code in _NOT_FOUND",
                new="is_certain = True",
            ),
        ),
    ),
    Mutant(
        name="registry-has-no-second-look",
        rules=(),
        wrong="An id that a replica of the registry lacks for a moment makes a record bad.",
        catchers=(f"{_CLIENT}::test_an_unknown_id_is_a_bad_record_after_a_second_look",),
        edits=(
            Edit(
                function=f"{_REGISTRY}.registry_client:RegistryClient.schemas",
                old="self._sleep(_SECOND_LOOK_S)",
                new="",
            ),
        ),
    ),
    Mutant(
        name="registry-shows-the-password",
        rules=(),
        wrong="The text of a registry shows its secrets.",
        catchers=(f"{_CLIENT}::TestDescription::test_secrets_are_not_shown",),
        edits=(
            Edit(
                function=f"{_REGISTRY}.schema_registry:SchemaRegistry.__repr__",
                old="shown = {n: REDACTED if n in _SECRETS else v for n, v in self._settings().items()}",
                new="shown = self._settings()",
            ),
        ),
    ),
    Mutant(
        name="registry-rules-are-ignored",
        rules=(),
        wrong="Fields that a rule encrypts are read as they are.",
        catchers=(f"{_AVRO}::test_a_schema_with_rules_is_refused",),
        edits=(
            Edit(
                function=f"{_REGISTRY}.avro_deserializer:_node",
                old='written.require_no_rules("READ")',
                new="",
            ),
        ),
    ),
    Mutant(
        name="avro-record-reads-its-neighbour",
        rules=(),
        wrong="A record that ends too early takes bytes of the next one.",
        catchers=(f"{_COLUMNS}::test_a_damaged_record_does_not_change_its_neighbours",),
        edits=(
            Edit(
                function=f"{_SERDE}.avro_columns:read_records",
                old="""
if (cursor.pos > ends).any():
    raise ValueError(_TORN)
""",
                new="",
            ),
        ),
    ),
    Mutant(
        name="avro-text-has-any-length",
        rules=(),
        wrong="A text may have a negative length, or one beyond its record.",
        catchers=(f"{_SCHEMAS}::test_a_length_moves_nothing_back",),
        edits=(
            Edit(
                function=f"{_SERDE}.avro_columns:Cursor.skip_lengths",
                old="""
if ((sizes < 0) | (sizes > self.end - start)).any():
    raise ValueError(_TORN)
""",
                new="",
            ),
        ),
    ),
    Mutant(
        name="avro-time-of-another-unit",
        rules=(),
        wrong="Milliseconds are read as microseconds.",
        catchers=(f"{_SCHEMAS}::test_times_of_other_units_are_refused",),
        edits=(
            Edit(
                function=f"{_SERDE}.avro_resolution:_conversion",
                old="if written is not None and read is not None and written != read:",
                new="if False:",
            ),
        ),
    ),
    Mutant(
        name="protobuf-value-vanishes",
        rules=(),
        wrong="A value that Protobuf's parser puts aside counts as an absent field.",
        catchers=(
            f"{_PROTOBUF}::TestWhatAReaderRefuses::test_a_number_that_a_closed_enum_does_not_have",
        ),
        edits=(
            Edit(
                function=f"{_REGISTRY}.protobuf.protobuf_reading:MessageReader._require_known",
                old="if field is not None:",
                new="if False:",
            ),
        ),
    ),
    Mutant(
        name="protobuf-number-is-cut",
        rules=(),
        wrong="A reader's narrower type cuts the writer's numbers.",
        catchers=(f"{_PROTOBUF}::TestAnotherSchemaOfTheReader::test_not_readable",),
        edits=(
            Edit(
                function=f"{_REGISTRY}.protobuf.protobuf_resolution:_is_readable",
                old="return written.type == read.type or (written.type, read.type) in _LARGER",
                new="return True",
            ),
        ),
    ),
    Mutant(
        name="protobuf-null-becomes-zero",
        rules=(),
        wrong="A null is written as 0 where a field cannot be absent.",
        catchers=(f"{_PROTOBUF}::TestWhatAWriterRefuses::test_values",),
        edits=(
            Edit(
                function=f"{_REGISTRY}.protobuf.protobuf_writing:_field",
                old="if not field.has_presence and _has_null(found):",
                new="if False:",
            ),
        ),
    ),
    Mutant(
        name="protobuf-oneof-keeps-the-last",
        rules=(),
        wrong="Of two values in a oneof one is lost.",
        catchers=(f"{_PROTOBUF}::TestWhatAWriterRefuses::test_two_members_of_a_oneof",),
        edits=(
            Edit(
                function=f"{_REGISTRY}.protobuf.protobuf_writing:_require_one",
                old="if sum(row) > 1:",
                new="if False:",
            ),
        ),
    ),
    Mutant(
        name="registry-header-of-the-input-stays",
        rules=(),
        wrong="A copied header names the schema of the input for the value that was written.",
        catchers=(f"{_WRITING}::test_the_header_of_a_copied_record_goes",),
        edits=(
            Edit(
                function=f"{_REGISTRY}.schema_writing:_headers",
                old="""kept = [header for header in found or () if header["key"] != name]""",
                new="kept = list(found or ())",
            ),
        ),
    ),
)
