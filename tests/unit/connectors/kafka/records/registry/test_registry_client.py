"""How answers and silence of a registry are told apart."""

import pickle
import socket
import uuid
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from sluice.connectors.kafka.records.registry.registry_client import RegistryClient
from sluice.connectors.kafka.records.registry.schema_registry import close_clients
from sluice.registry import RegisteredSchema, SchemaReference, SchemaRegistry, UnknownSchemaError
from sluice.runtime.errors import AuthenticationError, ConfigError, UnreachableError
from tests.kit.kafka.fake_registry import FakeRegistry

GUID = uuid.UUID("0e7c4a6f-8a8f-4f5b-9c1f-2a0c9b0a3c11")
BUSY = (429, {"error_code": 42901, "message": "too many requests"})


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    """With one schema."""
    with FakeRegistry().served() as fake:
        fake.add("numbers-value", '"int"', guid=str(GUID))
        yield fake


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    close_clients()
    while Clocked.opened:
        Clocked.opened.pop().close()


class Clocked:
    """A client whose pauses take no time."""

    opened: ClassVar[list[RegistryClient]] = []

    def __init__(self, url: str, **more: Any) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []
        self.client = RegistryClient(
            {"url": url, "timeout": 5, "max.retries": 0, **more},
            address=url,
            timeout_s=30,
            clock=lambda: self.now_s,
            sleep=self.sleep,
        )
        self.opened.append(self.client)

    def sleep(self, pause_s: float) -> None:
        self.pauses.append(pause_s)
        self.now_s += pause_s


def test_a_schema_is_fetched_once(registry: FakeRegistry) -> None:
    """By its number, and by its GUID."""
    client = Clocked(registry.url).client
    for _ in range(2):
        found = client.schemas([1, GUID])
        assert found[1].text == found[GUID].text == '"int"'
        assert (found[1].name, found[GUID].guid) == ("1", GUID)
    assert len(registry.paths) <= 2


@pytest.mark.parametrize(
    "failure",
    [BUSY, (500, {}), (503, b"<html>"), (401, {"error_code": 40101, "message": "m"}), (200, b"<")],
    ids=lambda failure: str(failure[0]),
)
def test_a_registry_that_recovers_is_asked_again(
    registry: FakeRegistry, failure: tuple[int, object]
) -> None:
    """With growing pauses."""
    registry.failures = [failure] * 5
    clocked = Clocked(registry.url)
    assert clocked.client.schemas([1])[1].text == '"int"'
    assert len(registry.paths) == 6
    assert clocked.pauses[-1] > clocked.pauses[0]


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (BUSY, UnreachableError),
        ((500, {}), UnreachableError),
        ((200, b"<html>"), UnreachableError),
        ((401, {"error_code": 40101, "message": "who?"}), AuthenticationError),
        ((403, b"no"), AuthenticationError),
    ],
    ids=lambda value: str(value[0] if isinstance(value, tuple) else value.__name__),
)
def test_a_registry_that_stays_away_is_no_bad_record(
    registry: FakeRegistry, failure: tuple[int, object], kind: type[Exception]
) -> None:
    """The error names the registry and the id."""
    registry.failures = [failure] * 1_000
    clocked = Clocked(registry.url)
    with pytest.raises(kind, match=rf"url={registry.url} id=1 .*waited_s="):
        clocked.client.schemas([1])
    assert 10 < clocked.now_s <= 30


def test_a_socket_that_accepts_and_never_answers_is_no_bad_record() -> None:
    """Each request ends by itself."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        clocked = Clocked(url, timeout=0.05)
        with pytest.raises(UnreachableError, match="ReadTimeout"):
            clocked.client.schemas([1])
    with pytest.raises(UnreachableError, match="ConnectError"):
        clocked.client.schemas([1])


def test_an_unknown_id_is_a_bad_record_after_a_second_look(registry: FakeRegistry) -> None:
    """And is not asked for again while its record is searched for."""
    clocked = Clocked(registry.url)
    for _ in range(3):
        with pytest.raises(UnknownSchemaError, match="no schema with id 7: Schema not found"):
            clocked.client.schemas([1, 7])
    assert [path for path in registry.paths if path.endswith("7")] == ["GET /schemas/ids/7"] * 2
    assert clocked.pauses == [1.0]


def test_an_unknown_id_is_found_when_it_is_registered(registry: FakeRegistry) -> None:
    """A follower of the registry may be late; and an id may be registered later."""
    clocked = Clocked(registry.url)
    with pytest.raises(UnknownSchemaError):
        clocked.client.schemas([2])
    registry.add("numbers-value", '"long"')
    clocked.now_s += 31
    assert clocked.client.schemas([2])[2].text == '"long"'


def test_an_id_that_no_registry_has_is_a_bad_record(registry: FakeRegistry) -> None:
    """A number beyond Java's, and a GUID where the registry has none."""
    client = Clocked(registry.url).client
    with pytest.raises(UnknownSchemaError, match="4294967295"):
        client.schemas([2**32 - 1])
    other = uuid.UUID(int=5)
    registry.failures = [(404, {"error_code": 0, "message": "no resource"})]
    with pytest.raises(UnknownSchemaError, match=str(other)):
        client.schemas([other])


@pytest.mark.parametrize("status", [404, 405])
def test_a_url_of_another_server_is_no_bad_record(registry: FakeRegistry, status: int) -> None:
    """Else each record would be skipped."""
    client = Clocked(f"{registry.url}/elsewhere").client
    with pytest.raises((ConfigError, ValueError)) as caught:
        client.schemas([1])
    assert isinstance(caught.value, ConfigError)
    assert "URL is not that of a schema registry" in str(caught.value)


REFERRING = '{"type":"record","name":"order","fields":[{"name":"by","type":"shop.person"}]}'
PERSON = (
    '{"type":"record","name":"person","namespace":"shop","fields":[{"name":"at","type":"place"}]}'
)
PLACE = '{"type":"fixed","name":"place","namespace":"shop","size":2}'


def reference(name: str, subject: str) -> dict[str, Any]:
    return {"name": name, "subject": subject, "version": 1}


def test_references_are_resolved_in_order(registry: FakeRegistry) -> None:
    """Those of the references, too; each one once."""
    place = reference("shop.place", "places")
    registry.add("places", PLACE)
    registry.add("people", PERSON, references=[place])
    person = reference("shop.person", "people")
    number = registry.add("orders-value", REFERRING, references=[place, person])
    found = Clocked(registry.url).client.schemas([number])[number]
    assert [name for name, _ in found.named] == ["shop.place", "shop.person"]
    assert found.references[1] == SchemaReference(name="shop.person", subject="people", version=1)


def test_a_missing_reference_makes_the_record_bad(registry: FakeRegistry) -> None:
    """The registry does not have the schema as a whole."""
    number = registry.add("orders-value", REFERRING, references=[reference("shop.person", "gone")])
    with pytest.raises(UnknownSchemaError, match=r"version 1 of gone"):
        Clocked(registry.url).client.schemas([number])


class TestWriting:
    """Schemas of a writer: found or registered before the first record."""

    LONG = RegisteredSchema(text='"long"')

    def test_a_schema_is_registered_or_looked_up(self, registry: FakeRegistry) -> None:
        """And gets the same id each time."""
        client = Clocked(registry.url).client
        with pytest.raises(ConfigError, match=r"subject=n .*auto_register_schemas"):
            client.registered("n", self.LONG, register=False)
        made = client.registered("n", self.LONG, register=True)
        assert made.schema_id == 2
        assert client.registered("n", self.LONG, register=False).schema_id == 2

    def test_a_lost_answer_of_a_registration_is_harmless(self, registry: FakeRegistry) -> None:
        """The registration may have happened: the second one gives the same id."""
        registry.add("n", '"long"')
        registry.failures = [(504, {})]
        assert Clocked(registry.url).client.registered("n", self.LONG, register=True).schema_id == 2
        assert registry.subjects["n"] == [2]

    def test_an_incompatible_schema_is_named(self, registry: FakeRegistry) -> None:
        """With its subject, and what the registry says of the difference."""
        registry.incompatible = "reader type: STRING not compatible"
        with pytest.raises(ConfigError, match=r"not compatible .*subject=n .*type: STRING"):
            Clocked(registry.url).client.registered("n", self.LONG, register=True)

    def test_an_invalid_schema_is_named(self, registry: FakeRegistry) -> None:
        """As such."""
        registry.failures = [(422, {"error_code": 42201, "message": "Invalid schema"})]
        with pytest.raises(ConfigError, match="refuses a schema as invalid"):
            Clocked(registry.url).client.registered("n", self.LONG, register=True)


def test_the_latest_version_is_found(registry: FakeRegistry) -> None:
    """Of a subject that exists."""
    registry.add("numbers-value", '"long"')
    described = SchemaRegistry(url=registry.url)
    assert described.latest("numbers-value").text == '"long"'
    with pytest.raises(ConfigError, match="subject=nothing"):
        described.latest("nothing")


class TestDescription:
    """`SchemaRegistry`: a value without secrets in its text."""

    @pytest.mark.parametrize(
        "options",
        [
            {"basic_auth_user_info": "ann:s3cret"},
            {"bearer_auth_token": "s3cret"},
            {"url": "http://ann:s3cret@here:1, http://ann:s3cret@there"},
            {"options": {"bearer.auth.client.secret": "s3cret"}},
            {"options": {"ssl.key.password": "s3cret"}},
        ],
        ids=str,
    )
    def test_secrets_are_not_shown(self, options: Any) -> None:
        """Though they travel with it."""
        described = SchemaRegistry(**{"url": "http://here", **options})
        again = pickle.loads(pickle.dumps(described))
        assert again == described
        for text in (repr(again), str(again), again.address):
            assert "s3cret" not in text
            assert "here" in text

    @pytest.mark.parametrize("form", ["url", "field", "option"])
    def test_credentials_are_sent(self, registry: FakeRegistry, form: str) -> None:
        """In each form."""
        url = registry.url.replace("//", "//ann:pw@") if form == "url" else registry.url
        user = {"basic_auth_user_info": "ann:pw"} if form == "field" else {}
        options = {"basic.auth.user.info": "ann:pw"} if form == "option" else {}
        made: Any = {"url": url, "options": options, **user}
        SchemaRegistry(**made).client().schemas([1])
        assert registry.headers[0]["authorization"].startswith("Basic ")

    def test_a_token_is_sent(self, registry: FakeRegistry) -> None:
        """Without a logical cluster, which Confluent Cloud alone needs."""
        SchemaRegistry(url=registry.url, bearer_auth_token="t").client().schemas([1])
        assert registry.headers[0]["authorization"] == "Bearer t"

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"options": {"no.such": "x"}}, "no.such"),
            ({"url": "ftp://here"}, "Invalid url"),
            ({"ssl_ca_location": "/no/such/file"}, "No such file"),
            ({"ssl_key_location": "/no/such/file"}, "ssl.certificate.location required"),
        ],
        ids=str,
    )
    def test_wrong_options_are_refused(self, options: Any, said: str) -> None:
        """When the client is made."""
        with pytest.raises(ConfigError, match=said):
            SchemaRegistry(**{"url": "http://here", **options}).client()

    @pytest.mark.parametrize(
        "options",
        [
            {"options": {"timeout": 1}},
            {"timeout_s": 1},
            {"proxy": "p", "options": {"proxy": "q"}},
            {"options": {"basic_auth_user_info": "ann:s3cret"}},
            {"url": "http://a:b@here", "basic_auth_user_info": "c:d"},
        ],
        ids=str,
    )
    def test_options_that_contradict_each_other_are_refused(self, options: Any) -> None:
        """At once."""
        with pytest.raises(ConfigError):
            SchemaRegistry(**{"url": "http://here", **options})

    def test_a_process_has_one_client(self) -> None:
        """Of each description."""
        one = SchemaRegistry(url="http://here")
        assert one.client() is pickle.loads(pickle.dumps(one)).client()
        assert one.client() is not SchemaRegistry(url="http://there").client()
