"""The whole recovery at a broker that clients log in to by Kerberos.

It needs a confluent-kafka that was built with GSSAPI, so it runs on demand (docs/guide/security.md).
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.connectors.kafka.client.confluent import make_admin
from sluice.runtime.errors import ConfigError
from tests.chaos.beds import kills
from tests.chaos.programs import SECURE_COPY
from tests.chaos.scenario import Scenario, Setting
from tests.kit.kerberos.kdc import Kdc, require_kerberos
from tests.kit.kerberos.kerberos_broker import KerberosBroker
from tests.kit.kerberos.secure_hdfs import BRIEF

pytestmark = [pytest.mark.chaos, pytest.mark.long, pytest.mark.timeout(2400)]


@pytest.fixture
def kdc(tmp_path: Path) -> Iterator[Kdc]:
    require_kerberos()
    with Kdc(tmp_path / "kdc") as running:
        yield running


@pytest.fixture
def broker(kdc: Kdc) -> Iterator[KerberosBroker]:
    with KerberosBroker(kdc) as running:
        yield running


def _require_gssapi() -> None:
    try:
        make_admin({"builtin.features": "sasl_gssapi"})
    except ConfigError as err:
        pytest.skip(
            str(err)
        )  # confluent-kafka's wheel is built without GSSAPI; names the way to it


def test_recovery_over_kerberos_is_exact(kdc: Kdc, broker: KerberosBroker, tmp_path: Path) -> None:
    """Both clients of the driver and those of tasks log in by the keytab."""
    options = dict(broker.login(BRIEF, kdc.keytab(BRIEF, BRIEF)))
    _require_gssapi()
    settings = {"bootstrap": broker.secure_bootstrap, "options": options}
    environment = {
        **kdc.environment,
        "SECURE_COPY": json.dumps(settings),
        "KRB5CCNAME": str(tmp_path / "tickets"),
    }
    setting = Setting(environment=environment)
    with Scenario(SECURE_COPY, broker.bootstrap, tmp_path, setting) as scenario:
        for kill in kills(("after-flush", "after-decision")):
            scenario.kill_at(kill)
        scenario.finish()
