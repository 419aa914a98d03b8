"""An embedded YARN in a Kerberos realm, on the realm's HDFS."""

import shutil
from typing import Any

from sluice.runtime.embedded.yarn.embedded_yarn import EmbeddedYarn
from tests.kit.kerberos.kdc import REALM
from tests.kit.kerberos.realm import Realm
from tests.kit.kerberos.secure_hdfs import secured_site

__all__ = ["SecureYarn"]

_SERVICE = f"yarn/localhost@{REALM}"


class SecureYarn(EmbeddedYarn):
    """As `EmbeddedYarn`. Its web pages need no log-in. All containers run as the tests' own user of
    this machine, whoever submits them.

    Args:
        realm: it runs.
    """

    def __init__(self, realm: Realm, **options: Any) -> None:
        self._realm = realm
        keytab = str(realm.kdc.keytab("yarn", _SERVICE))
        settings = {
            "yarn.resourcemanager.principal": _SERVICE,
            "yarn.resourcemanager.keytab": keytab,
            "yarn.resourcemanager.proxy-user-privileges.enabled": "true",
            "yarn.resourcemanager.webapp.delegation-token-auth-filter.enabled": "false",
            "yarn.nodemanager.principal": _SERVICE,
            "yarn.nodemanager.keytab": keytab,
            **options.pop("settings", {}),
        }
        super().__init__(default_fs=realm.hdfs.uri, settings=settings, **options)

    def _core_site(self) -> dict[str, str]:
        self.conf_dir.mkdir(parents=True, exist_ok=True)
        for name in ("hdfs-site.xml", "ssl-client.xml"):
            shutil.copy(self._realm.hdfs.conf_dir / name, self.conf_dir)
        return {**super()._core_site(), **secured_site(self._realm.kdc)}

    def _java_options(self) -> tuple[str, ...]:
        return (self._realm.kdc.java_option,)
