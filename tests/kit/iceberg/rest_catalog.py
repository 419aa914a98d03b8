"""A real REST catalog: the servlet of Iceberg's own tests before its JDBC catalog."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import JavaGateway

from sluice.runtime.embedded.ivy import Artifact, Bundle, fetch, parse_checksums, pyspark_jars
from sluice.runtime.embedded.java import find_java
from sluice.runtime.embedded.ports import HOST
from tests.kit.objects.s3_proxy import S3Proxy

__all__ = ["RestCatalog", "iceberg_jvm", "rest_catalog"]

_VERSION = "1.10.1"
_JETTY = "11.0.26"
_DATA = Path(__file__).parents[2] / "data"


@dataclass(frozen=True, slots=True)
class RestCatalog:
    """A server with its own tables, and a proxy before it.

    Attributes:
        direct: URI of the server.
        proxy: at another URI; a fault's ``key`` is the path after ``/v1/``.
    """

    direct: str
    proxy: S3Proxy

    def properties(self, uri: str | None = None) -> dict[str, str]:
        """Of a client; through the proxy, unless ``uri`` is another one."""
        return {"type": "rest", "uri": uri or self.proxy.endpoint, "warehouse": "any"}


def _bundle(name: str, *artifacts: Artifact) -> Path:
    checksums = parse_checksums((_DATA / f"{name}.sha256").read_text("ascii"))
    return fetch(Bundle(name=name, artifacts=artifacts, checksums=checksums))


def _class_path() -> str:
    iceberg = "org.apache.iceberg"
    server = _bundle(
        f"iceberg-rest-{_VERSION}",
        Artifact(organisation=iceberg, name="iceberg-core", version=_VERSION),
        Artifact(organisation="org.eclipse.jetty", name="jetty-servlet", version=_JETTY),
        Artifact(organisation="org.xerial", name="sqlite-jdbc", version="3.53.2.1"),
    )
    tests = _bundle(  # Ivy takes one file of a module at once
        f"iceberg-core-tests-{_VERSION}",
        Artifact(
            organisation=iceberg,
            name="iceberg-core",
            version=_VERSION,
            transitive=False,
            archive=("tests", "jar"),
        ),
    )
    hadoop = sorted(str(jar) for jar in pyspark_jars().glob("hadoop-client-*.jar"))
    return ":".join([f"{server}/*", f"{tests}/*", *hadoop, str(next(pyspark_jars().glob("py4j*")))])


@pytest.fixture(scope="session")
def iceberg_jvm() -> Iterator[Any]:
    """A JVM with Iceberg's classes; it ends with this process."""
    gateway = JavaGateway.launch_gateway(
        classpath=_class_path(), java_path=find_java().executable, die_on_exit=True
    )
    yield gateway.jvm
    gateway.shutdown()


@contextmanager
def _serving(jvm: Any, directory: Path) -> Iterator[str]:
    settings = jvm.java.util.HashMap()
    settings.put("catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog")
    settings.put("uri", f"jdbc:sqlite:{directory}/rest.db")
    settings.put("jdbc.schema-version", "V1")
    settings.put("warehouse", f"file://{directory}/warehouse")
    catalog = jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(
        "rest", settings, jvm.org.apache.hadoop.conf.Configuration()
    )
    rest = jvm.org.apache.iceberg.rest
    servlet = rest.RESTCatalogServlet(rest.RESTCatalogAdapter(catalog))
    jetty = jvm.org.eclipse.jetty
    context = jetty.servlet.ServletContextHandler()
    context.addServlet(jetty.servlet.ServletHolder(servlet), "/*")
    server = jetty.server.Server(0)
    server.setHandler(context)
    server.start()
    try:
        yield f"http://{HOST}:{server.getURI().getPort()}"
    finally:
        server.stop()
        catalog.close()


@pytest.fixture
def rest_catalog(iceberg_jvm: Any, tmp_path: Path) -> Iterator[RestCatalog]:
    """An empty catalog."""
    with _serving(iceberg_jvm, tmp_path) as uri, S3Proxy(uri) as proxy:
        yield RestCatalog(uri, proxy)
