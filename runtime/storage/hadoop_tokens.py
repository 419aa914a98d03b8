"""Obtains delegation tokens of HDFS in the driver, with the keytab or ticket of its JVM.

A token cannot be obtained over a connection that a token authenticated, and on YARN the JVM's user
has Spark's tokens. So each token begins with a login of its own, as Spark's own tokens do. Nothing
renews tokens: at three quarters of its life a token is replaced, also beyond its longest life.
"""

import time
from typing import Any

from py4j.protocol import Py4JError

from sluice.runtime.errors import AuthenticationError
from sluice.runtime.storage.delegation_tokens import DelegationToken
from sluice.runtime.storage.hadoop_errors import exceptions_of, failure_kind, telling, typed

__all__ = ["HadoopLogin"]


class HadoopLogin:
    """Obtains a token. Driver; one thread at a time.

    Args:
        jvm: py4j's view.
        conf: Hadoop's configuration.
        uri: of the file system.
        principal, keytab: of the user; None: the ticket cache, else the token that Spark gave to
            the JVM's user.
    """

    def __init__(
        self,
        jvm: Any,  # noqa: ANN401 - py4j's view
        conf: Any,  # noqa: ANN401 - a Java object
        uri: str,
        *,
        principal: str | None,
        keytab: str | None,
    ) -> None:
        self._jvm = jvm
        self._conf = conf
        self._uri = uri
        self._principal = principal
        self._keytab = keytab

    def __call__(self) -> DelegationToken:
        """A new token.

        Raises:
            AuthenticationError: no ticket or keytab, or the KDC or NameNode refused it.
            StorageUnreachableError: the KDC or NameNode does not answer.
            StorageError: the NameNode failed.
        """
        try:
            user = self._user()
            return self._sparks_token() if user is None else self._obtained(user)
        except Py4JError as error:
            chain = exceptions_of(error)
            where = {
                "uri": self._uri,
                "principal": self._principal or "of the ticket cache",
                "error": str(telling(chain)),
            }
            raise typed(failure_kind(chain), "obtain a delegation token of HDFS", where) from error

    def _user(self) -> Any:  # noqa: ANN401 - a Java object
        """A fresh login; None: this JVM has no Kerberos credentials."""
        users = self._jvm.org.apache.hadoop.security.UserGroupInformation
        if self._principal and self._keytab:
            return users.loginUserFromKeytabAndReturnUGI(self._principal, self._keytab)
        current = users.getCurrentUser()
        if current.getRealUser() is not None:  # a proxy user: Hadoop acts as the real one
            return current
        if not current.hasKerberosCredentials():
            return None
        cache = self._jvm.System.getenv("KRB5CCNAME")
        path = None if cache is None else str(cache).removeprefix("FILE:")
        return users.getUGIFromTicketCache(path, current.getUserName())

    def _obtained(self, user: Any) -> DelegationToken:  # noqa: ANN401 - a Java object
        hadoop = self._jvm.org.apache.hadoop
        uri = hadoop.fs.Path(self._uri).toUri()
        obtained_ms = _now_ms()
        files = self._as_user(
            user, "org.apache.hadoop.fs.FileSystem", "newInstance", None, uri, self._conf
        )
        try:
            token = files.getDelegationToken(user.getUserName())
            # The first renewal answers when the token ends, which only the NameNode knows.
            expires_ms = self._as_user(
                user, "org.apache.hadoop.security.token.Token", "renew", token, self._conf
            )
        finally:
            files.close()
        return DelegationToken(
            text=str(token.encodeToUrlString()), obtained_ms=obtained_ms, expires_ms=int(expires_ms)
        )

    def _sparks_token(self) -> DelegationToken:
        """The token that Spark obtained where it was submitted."""
        hadoop = self._jvm.org.apache.hadoop
        files = hadoop.fs.FileSystem.newInstance(hadoop.fs.Path(self._uri).toUri(), self._conf)
        try:
            service = hadoop.io.Text(files.getCanonicalServiceName())
        finally:
            files.close()
        user = hadoop.security.UserGroupInformation.getCurrentUser()
        token = user.getCredentials().getToken(service)
        if token is None:
            raise AuthenticationError(
                "the driver has no Kerberos ticket for HDFS",
                {"uri": self._uri, "user": user.getUserName()},
                "Set spark.kerberos.principal and spark.kerberos.keytab, or run kinit before the "
                "driver starts.",
            )
        now_ms = _now_ms()
        return DelegationToken(
            text=str(token.encodeToUrlString()),
            obtained_ms=now_ms,
            expires_ms=min(token.decodeIdentifier().getMaxDate(), now_ms + 4 * 60_000),
        )

    def _as_user(
        self,
        user: Any,  # noqa: ANN401 - a Java object
        owner: str,
        name: str,
        target: Any,  # noqa: ANN401 - a Java object
        *arguments: Any,  # noqa: ANN401 - Java objects
    ) -> Any:  # noqa: ANN401 - a Java object
        """Call a method of a Java class as that user: Hadoop takes the user from the call stack,
        and Python cannot implement Java's interface without a server for calls from Java."""
        java = self._jvm.java
        found = java.lang.Class.forName(
            owner, True, java.lang.Thread.currentThread().getContextClassLoader()
        )
        candidates = [each for each in found.getMethods() if each.getName() == name]
        (method,) = [each for each in candidates if each.getParameterCount() == len(arguments)]
        bound = [*([] if target is None else [target]), *arguments]
        values = java.lang.reflect.Array.newInstance(
            java.lang.Class.forName("java.lang.Object"), len(bound)
        )
        for index, value in enumerate(bound):
            java.lang.reflect.Array.set(values, index, value)
        handles = java.lang.invoke.MethodHandles
        handle = handles.insertArguments(handles.publicLookup().unreflect(method), 0, values)
        kind = java.lang.Class.forName("java.security.PrivilegedExceptionAction")
        return user.doAs(java.lang.invoke.MethodHandleProxies.asInterfaceInstance(kind, handle))


def _now_ms() -> int:
    return int(time.time() * 1000)
