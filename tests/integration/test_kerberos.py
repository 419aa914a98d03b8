"""Logins and delegation tokens at a real KDC and a secured HDFS, without Spark."""

import dataclasses
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from sluice.runtime.errors import AuthenticationError, StorageUnreachableError, StreamError
from sluice.runtime.storage.delegation_tokens import DriverTokens
from sluice.runtime.storage.file_system_opening import open_file_system
from sluice.runtime.storage.hadoop_tokens import HadoopLogin
from sluice.runtime.storage.web_hdfs import WebHdfsAddress, web_hdfs_address
from sluice.runtime.storage.web_hdfs_client import WebHdfsTaskFiles
from tests.kit.kerberos.kdc import REALM
from tests.kit.kerberos.realm import TOKEN_LIFE_S, Realm
from tests.kit.kerberos.secure_hdfs import USER
from tests.kit.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(1200)]


def _login(jvm: Any, realm: Realm, **login: str | None) -> HadoopLogin:
    conf = jvm.org.apache.hadoop.hdfs.HdfsConfiguration()
    given = {"principal": None, "keytab": None, **login}
    return HadoopLogin(jvm, conf, realm.hdfs.uri, **given)


def _by_keytab(jvm: Any, realm: Realm) -> HadoopLogin:
    return _login(jvm, realm, principal=f"{USER}@{REALM}", keytab=str(realm.keytab()))


def _address(realm: Realm, tokens: DriverTokens) -> WebHdfsAddress:
    settings = {
        "dfs.http.policy": "HTTPS_ONLY",
        "dfs.namenode.https-address": realm.hdfs.web_uri.removeprefix("https://"),
    }
    found = web_hdfs_address(realm.hdfs.uri, settings.get, user=USER)
    authorities = realm.hdfs.certificate.ca_file.read_text()
    return dataclasses.replace(found, authorities=authorities, tokens=tokens)


def _write(files: WebHdfsTaskFiles) -> None:
    path = f"/{uuid.uuid4().hex}/file"
    file = files.create(path)
    file.stream.write(b"rows")
    assert file.finish() == 4
    assert files.read(path, 0, 4) == b"rows"


def test_tasks_write_by_a_token_while_the_kdc_is_away_and_wait_once_it_has_expired(
    realm: Realm,
) -> None:
    """Over TLS, at the NameNode and the DataNode; with the next token they continue."""
    with realm.hadoop_client() as jvm:
        tokens = DriverTokens(_by_keytab(jvm, realm))
        first = tokens.current()
        assert 0 < first.expires_ms - first.obtained_ms < 2 * TOKEN_LIFE_S * 1000
        files = WebHdfsTaskFiles(address=_address(realm, tokens))
        _write(files)
        realm.kdc.stop()
        try:
            _write(files)
            wait_for(lambda: _raised(_write, files) is StorageUnreachableError, what="its end")
            assert tokens.current() == first
            assert "Connection refused" in tokens.issued().problem
            found = open_file_system(f"{realm.hdfs.uri}/x", jvm)
            assert _raised(found.read, "absent") in (None, StorageUnreachableError)
        finally:
            realm.kdc.start()
        wait_for(lambda: _raised(_write, files) is None, what="the next token")
        assert open_file_system(f"{realm.hdfs.uri}/x", jvm).read("absent") is None


def _raised(call: Callable[..., object], *arguments: object) -> type[StreamError] | None:
    try:
        call(*arguments)
    except StreamError as err:
        return type(err)
    return None


def test_a_ticket_cache_is_enough(realm: Realm) -> None:
    """As after ``kinit``; the driver's other calls use the same ticket."""
    cache = realm.kdc.ticket_cache(USER, realm.keytab())
    with realm.hadoop_client(None, cache=cache) as jvm:
        tokens = DriverTokens(_login(jvm, realm))
        _write(WebHdfsTaskFiles(address=_address(realm, tokens)))
        fs = open_file_system(f"{realm.hdfs.uri}/{uuid.uuid4().hex}", jvm)
        fs.write_temporary("file", b"1")
        assert fs.read("file") == b"1"


@pytest.mark.long
def test_a_driver_with_sparks_token_alone_uses_it(realm: Realm) -> None:
    """As in YARN's cluster mode without a keytab: Spark's client obtained it and sent it along."""
    with realm.hadoop_client() as jvm:
        text = _by_keytab(jvm, realm)().text
    with realm.hadoop_client(None) as jvm:
        hadoop = jvm.org.apache.hadoop
        token = hadoop.security.token.Token()
        token.decodeFromUrlString(text)
        hadoop.security.UserGroupInformation.getCurrentUser().addToken(token)
        tokens = DriverTokens(_login(jvm, realm))
        _write(WebHdfsTaskFiles(address=_address(realm, tokens)))


def test_a_login_that_fails_says_what_to_do(realm: Realm) -> None:
    with realm.hadoop_client(None) as jvm:
        with pytest.raises(AuthenticationError, match="run kinit"):
            _login(jvm, realm)()
        with pytest.raises(AuthenticationError, match="klist -k"):
            _login(jvm, realm, principal=f"{USER}@{REALM}", keytab="/absent.keytab")()
        with pytest.raises(AuthenticationError, match="klist -k"):
            _login(jvm, realm, principal=f"nobody@{REALM}", keytab=str(realm.keytab()))()
        old = realm.kdc.keytab("old", "old")
        realm.kdc.renew_keys("old")
        with pytest.raises(AuthenticationError, match="klist -k"):
            _login(jvm, realm, principal=f"old@{REALM}", keytab=str(old))()
        with pytest.raises(AuthenticationError, match="Run kinit"):
            open_file_system(f"{realm.hdfs.uri}/x", jvm).read("absent")
