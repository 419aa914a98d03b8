"""The client of a schema registry: retries, failures by kind, and the schemas fetched so far.

A registry that is down, slow or overloaded, or that refuses the credentials, says nothing of a
record: such a failure is a `StreamError` and fails the task, whatever ``on_error`` says. Only an id
that the registry certainly does not have makes a record bad (`UnknownSchemaError`).
"""

import logging
import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal, TypeVar

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry import SchemaReference as ClientReference

from sluice.connectors.kafka.client.login_refusals import LASTING_S
from sluice.connectors.kafka.client.retry import Deadline
from sluice.connectors.kafka.records.registry.registered_schema import (
    RegisteredSchema,
    SchemaReference,
    UnknownSchemaError,
)
from sluice.connectors.kafka.records.serde.schema_ids import SchemaId
from sluice.runtime.contracts import Clock
from sluice.runtime.errors import (
    AuthenticationError,
    ConfigError,
    StreamError,
    UnreachableError,
)

__all__ = ["RegistryClient"]

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_SECOND_LOOK_S = 1.0  # a follower of the registry may lag behind the writer of a record
_UNKNOWN_S = 30.0
_MOST_KEPT = 10_000
_LARGEST_ID = 2**31 - 1
_REFUSED = (401, 403)
_NOT_FOUND = (40401, 40402, 40403)  # subject, version, schema
_ABSENT, _INCOMPATIBLE, _INVALID = 404, 409, 422

T = TypeVar("T")


class RegistryClient:
    """Asks one registry. Driver or executor; any thread.

    Args:
        settings: of `SchemaRegistryClient`, which itself retries nothing.
        address: URLs without credentials, for errors.
        timeout_s: how long a request is repeated.
        clock: monotonic seconds.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        address: str,
        timeout_s: float,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep
        self._schemas: dict[SchemaId, RegisteredSchema] = {}
        self._unknown: dict[SchemaId, tuple[float, str]] = {}
        try:
            self._client = SchemaRegistryClient.new_client(dict(settings))
        except (ValueError, TypeError, OSError) as err:
            raise ConfigError(
                "the options of a schema registry are wrong",
                {"url": address, "why": err},
                "Use the option names and values of confluent-kafka's SchemaRegistryClient.",
            ) from err

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def schemas(self, ids: Iterable[SchemaId]) -> dict[SchemaId, RegisteredSchema]:
        """The schemas of ids, each fetched once in this process.

        Raises:
            UnknownSchemaError: the registry does not have one of them, nor a second later.
            UnreachableError: it does not answer in time.
            AuthenticationError: it refuses the credentials.
            ConfigError: its URL is not that of a registry.
        """
        wanted = set(ids)
        missing = {each: why for each in wanted if (why := self._missing(each))}
        if any(each not in self._unknown for each in missing):
            self._sleep(_SECOND_LOOK_S)
            missing = {each: why for each in missing if (why := self._missing(each))}
            self._remember_unknown(missing)
        if missing:
            schema_id, why = min(missing.items(), key=str)
            raise UnknownSchemaError(f"the registry has no schema with id {schema_id}: {why}")
        return {each: self._schemas[each] for each in wanted}

    def version(self, subject: str, version: int | Literal["latest"]) -> RegisteredSchema:
        """A version of a subject, or its ``latest``.

        Raises:
            ConfigError: there is none.
        """
        where = {"subject": subject, "version": version}
        try:
            found = self._request(lambda: self._client.get_version(subject, version), where)
            return self._with_references(found.schema, found.schema_id, found.guid, where)
        except (SchemaRegistryError, UnknownSchemaError) as err:
            raise ConfigError(
                "the registry has no such version of a subject",
                {"url": self._address, **where, "answer": err},
                "Correct the subject, or register a schema under it.",
            ) from err

    def registered(
        self, subject: str, schema: RegisteredSchema, *, register: bool, normalize: bool = False
    ) -> RegisteredSchema:
        """The schema with its ids under a subject.

        Args:
            register: register it if the subject does not have it.
            normalize: let the registry bring both into one form before it compares them.
        Raises:
            ConfigError: the subject does not have it, the schema is invalid or breaks the
                subject's compatibility rule.
        """
        wanted, client = _client_schema(schema), self._client
        ask = client.register_schema_full_response if register else client.lookup_schema
        where = {"subject": subject}
        try:
            found = self._request(lambda: ask(subject, wanted, normalize_schemas=normalize), where)
            return self._with_references(wanted, found.schema_id, found.guid, where)
        except (SchemaRegistryError, UnknownSchemaError) as err:
            raise self._refused(subject, err) from err

    def reference(
        self, name: str, schema: RegisteredSchema, *, register: bool, normalize: bool = False
    ) -> SchemaReference:
        """A reference to a schema under a subject of the reference's name; see `registered`."""
        self.registered(name, schema, register=register, normalize=normalize)
        wanted = _client_schema(schema)
        try:
            found = self._request(
                lambda: self._client.lookup_schema(name, wanted, normalize_schemas=normalize),
                {"subject": name},
            )
        except SchemaRegistryError as err:
            raise self._refused(name, err) from err
        return SchemaReference(name=name, subject=name, version=int(found.version or 0))

    def _refused(self, subject: str, err: Exception) -> ConfigError:
        status = getattr(err, "http_status_code", None)
        what, remedy = {
            _INCOMPATIBLE: (
                "a schema is not compatible with the versions of its subject",
                "Change the schema as the answer says, or the subject's compatibility rule.",
            ),
            _INVALID: ("the registry refuses a schema as invalid", "Correct the schema."),
        }.get(
            status or 0,
            (
                "the registry does not have the schema under the subject",
                "Register it before, or set auto_register_schemas=True.",
            ),
        )
        return ConfigError(what, {"url": self._address, "subject": subject, "answer": err}, remedy)

    def _missing(self, schema_id: SchemaId) -> str | None:
        """Fetch a schema; why there is none, None if there is one."""
        if schema_id in self._schemas:
            return None
        until_s, why = self._unknown.get(schema_id, (0.0, ""))
        if why and self._clock() < until_s:
            return why
        self._unknown.pop(schema_id, None)
        if isinstance(schema_id, int) and schema_id > _LARGEST_ID:
            return "ids of a registry are smaller"
        try:
            found = self._fetch(schema_id)
        except (UnknownSchemaError, SchemaRegistryError) as err:
            return str(err)
        if len(self._schemas) >= _MOST_KEPT:
            self._schemas.clear()
        self._schemas[schema_id] = found
        return None

    def _remember_unknown(self, missing: Mapping[SchemaId, str]) -> None:
        """So that Sluice asks once while it looks for the bad record in a batch."""
        now_s = self._clock()
        if len(self._unknown) >= _MOST_KEPT:
            self._unknown.clear()
        self._unknown.update({each: (now_s + _UNKNOWN_S, why) for each, why in missing.items()})

    def _fetch(self, schema_id: SchemaId) -> RegisteredSchema:
        where = {"id": schema_id}
        if isinstance(schema_id, int):
            found = self._request(lambda: self._client.get_schema(schema_id), where)
            return self._with_references(found, schema_id, None, where)
        found = self._request(lambda: self._client.get_schema_by_guid(str(schema_id)), where)
        return self._with_references(found, None, str(schema_id), where)

    def _with_references(
        self, schema: Schema, schema_id: int | None, guid: str | None, where: Mapping[str, object]
    ) -> RegisteredSchema:
        named: dict[str, str] = {}
        self._add_references(schema, named, where, ())
        return RegisteredSchema(
            text=self._text_of(schema, where),
            schema_type=schema.schema_type or "AVRO",
            schema_id=schema_id,
            guid=None if guid is None else uuid.UUID(guid),
            references=_references(schema),
            named=tuple(named.items()),
            rule_modes=_rule_modes(schema),
        )

    def _add_references(
        self,
        schema: Schema,
        named: dict[str, str],
        where: Mapping[str, object],
        path: tuple[str, ...],
    ) -> None:
        """Add the text of each schema that this one refers to, after those that it needs."""
        for each in _references(schema):
            if each.name in named or each.name in path:
                continue
            at = {**where, "reference": each.name, "subject": each.subject, "version": each.version}
            ask = partial(self._client.get_version, each.subject, each.version, deleted=True)
            try:
                found = self._request(ask, at).schema
            except SchemaRegistryError as err:
                raise UnknownSchemaError(
                    f"it refers to {each.name} in version {each.version} of {each.subject}: {err}"
                ) from err
            self._add_references(found, named, where, (*path, each.name))
            named[each.name] = self._text_of(found, at)

    def _text_of(self, schema: Schema, where: Mapping[str, object]) -> str:
        if schema.schema_str is None:
            raise UnreachableError(
                "an answer of the schema registry has no schema in it",
                {"url": self._address, **where},
                "Check that url is that of a schema registry.",
            )
        return schema.schema_str

    def _request(
        self, ask: Callable[[], T], where: Mapping[str, object], *, is_probe: bool = False
    ) -> T:
        """The answer to one request, which is repeated while a repetition may help. A registration
        may be repeated, too: the registry gives the same schema the same id.

        Raises:
            SchemaRegistryError: the registry does not have what the request names, or refuses it.
            StreamError: it gives no answer that counts.
        """
        began_s, deadline = self._clock(), Deadline(self._timeout_s, self._clock)
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return ask()
            except SchemaRegistryError as err:
                if not _may_pass(err.http_status_code):
                    self._require_registry(err, where, is_probe=is_probe)
                    raise
                failure: Exception = err
            except MemoryError:
                raise
            except Exception as err:  # noqa: BLE001 - of HTTP, TLS, tokens, and of their texts
                failure = err
            refused = getattr(failure, "http_status_code", None) in _REFUSED
            waited_s = self._clock() - began_s
            if deadline.left_s <= pause_s or (refused and waited_s >= LASTING_S):
                raise self._failed(failure, where, waited_s) from failure
            log.warning(
                "schema registry does not answer: url=%s %s waited_s=%.1f error=%s",
                self._address,
                " ".join(f"{name}={value}" for name, value in where.items()),
                waited_s,
                _text(failure),
            )
            self._sleep(pause_s * random.uniform(0.5, 1))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _failed(
        self, failure: Exception, where: Mapping[str, object], waited_s: float
    ) -> StreamError:
        at = {"url": self._address, **where, "waited_s": round(waited_s, 1), "why": _text(failure)}
        if getattr(failure, "http_status_code", None) in _REFUSED:
            return AuthenticationError(
                "the schema registry refuses the credentials",
                at,
                "Correct basic_auth_user_info, the token or the certificate, or the permissions.",
            )
        return UnreachableError(
            "the schema registry does not answer",
            at,
            "Check that it runs and that this machine reaches its url; raise timeout_s if it is "
            "slow.",
        )

    def _require_registry(
        self, err: SchemaRegistryError, where: Mapping[str, object], *, is_probe: bool
    ) -> None:
        """An answer without a code of registries may come from another server: a wrong URL must not
        make each record a bad one. A registry without GUIDs gives such an answer, too."""
        is_certain = err.error_code in _NOT_FOUND
        if is_probe or is_certain or err.http_status_code in (_INCOMPATIBLE, _INVALID):
            return
        try:
            kinds = self._request(self._client.get_schema_types, where, is_probe=True)
        except SchemaRegistryError:
            kinds = []
        if not kinds or err.http_status_code != _ABSENT:
            raise ConfigError(
                "the URL is not that of a schema registry, or it refuses requests",
                {"url": self._address, **where, "answer": _text(err)},
                "Correct url; Apicurio's ends in /apis/ccompat/v7.",
            ) from err


def _client_schema(schema: RegisteredSchema) -> Schema:
    references = [ClientReference(r.name, r.subject, r.version) for r in schema.references]
    return Schema(schema.text, schema.schema_type, references)


def _references(schema: Schema) -> tuple[SchemaReference, ...]:
    return tuple(
        SchemaReference(name=each.name or "", subject=each.subject or "", version=each.version or 0)
        for each in schema.references or ()
    )


def _may_pass(status: int) -> bool:
    return status in (*_REFUSED, 408, 425, 429) or status >= 500


def _text(err: Exception) -> str:
    return f"{type(err).__name__}: {err}"[:300]


def _rule_modes(schema: Schema) -> frozenset[str]:
    rules = schema.rule_set
    if rules is None:
        return frozenset()
    found = [*(rules.domain_rules or ()), *(rules.encoding_rules or ())]
    return frozenset(str(rule.mode) for rule in found if not rule.disabled)
