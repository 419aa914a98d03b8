"""`deploy/kubernetes` fits Kubernetes' schemas, and its parts fit each other and the image."""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from sluice.runtime.service.listening.service_settings import ServiceSettings
from tests.kit.deploy_page import DEPLOY, ROOT

FILES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
OLDEST, NEWEST = "1.31", "1.37"
TEMPLATE, CONF = "executor.yaml", "spark-defaults.conf"


def documents(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(file.read_text("utf-8")))


def of_kind(file: Path, kind: str) -> list[dict[str, Any]]:
    return [each for each in documents(file) if each["kind"] == kind]


def driver(file: Path) -> dict[str, Any]:
    (deployment,) = of_kind(file, "Deployment")
    pod: dict[str, Any] = deployment["spec"]["template"]
    return pod


def pods(file: Path) -> Iterator[dict[str, Any]]:
    """The driver's pod, and the template of its executors."""
    yield driver(file)
    for each in of_kind(file, "ConfigMap"):
        if TEMPLATE in each["data"]:
            yield yaml.safe_load(each["data"][TEMPLATE])


def spark_conf(file: Path) -> Mapping[str, str]:
    (text,) = (d["data"][CONF] for d in of_kind(file, "ConfigMap") if CONF in d["data"])
    return dict(line.split(None, 1) for line in text.splitlines())


def test_there_are_manifests() -> None:
    assert [file.stem for file in FILES] == ["executors", "one-pod"]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_document_fits_its_schema(file: Path, version: str) -> None:
    """Strictly: an unknown field is an error. The template has no name; Spark gives it one."""
    for document in documents(file):
        kubernetes_validate.validate(document, version, strict=True)
    for pod in pods(file):
        named = {"apiVersion": "v1", "kind": "Pod", **pod}
        kubernetes_validate.validate(named, version, strict=True)


def test_the_schemas_find_errors() -> None:
    wrong = driver(FILES[0]) | {"apiVersion": "v1", "kind": "Pod"}
    wrong["spec"] = wrong["spec"] | {"runAsNonRoot": True}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, NEWEST, strict=True)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_pod_is_restricted(file: Path) -> None:
    """As the Pod Security Standard of that name wants it, with a read-only root file system."""
    user = re.search(r"^USER (\d+):(\d+)", (DEPLOY / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert user is not None
    for pod in pods(file):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == int(user[1])
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted == {volume["name"] for volume in spec["volumes"]}
            assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_everything_that_a_pod_refers_to_is_there(file: Path) -> None:
    made = {(each["kind"], each["metadata"]["name"]) for each in documents(file)}
    for pod in pods(file):
        text = yaml.safe_dump(pod)
        for kind, pattern in {
            "Secret": r"secretName: (\S+)|secretRef:\s+name: (\S+)",
            "ConfigMap": r"configMap(?:Ref)?:\s+name: (\S+)",
            "PersistentVolumeClaim": r"claimName: (\S+)",
            "ServiceAccount": r"serviceAccountName: (\S+)",
        }.items():
            for found in re.findall(pattern, text):
                name = found if isinstance(found, str) else next(filter(None, found))
                assert (kind, name) in made
    labels = [pod["metadata"]["labels"] for pod in pods(file)]
    for policy in of_kind(file, "NetworkPolicy"):
        selected = policy["spec"]["podSelector"]["matchLabels"]
        assert any(selected.items() <= each.items() for each in labels)


def test_the_program_of_the_image_knows_its_settings() -> None:
    program = (DEPLOY / "orders.py").read_text("utf-8")
    for file in FILES:
        needed = set(re.findall(r'os\.environ\["(\w+)"\]', program))
        (settings,) = (
            each["data"] for each in of_kind(file, "ConfigMap") if "INPUT" in each["data"]
        )
        assert needed <= settings.keys()
        assert "CREDENTIALS_DIRECTORY" in settings


def test_executors_reach_the_driver_at_fixed_ports() -> None:
    """Spark's two and Sluice's one: in Spark's settings, the headless service and the policies."""
    file = DEPLOY / "kubernetes" / "executors.yaml"
    conf = spark_conf(file)
    service = ServiceSettings.of(conf)
    assert service.tls is True
    ports = {
        int(conf["spark.driver.port"]),
        int(conf["spark.driver.blockManager.port"]),
        *service.ports,
    }
    assert len(ports) == 3
    (headless,) = of_kind(file, "Service")
    assert headless["spec"]["clusterIP"] == "None"
    assert {each["port"] for each in headless["spec"]["ports"]} == ports
    name, namespace = headless["metadata"]["name"], conf["spark.kubernetes.namespace"]
    assert service.host == conf["spark.driver.host"] == f"{name}.{namespace}.svc"
    assert service.bind_address == conf["spark.driver.bindAddress"] == "0.0.0.0"
    spec = driver(file)
    assert headless["spec"]["selector"].items() <= spec["metadata"]["labels"].items()
    assert {p["containerPort"] for p in spec["spec"]["containers"][0]["ports"]} == ports
    (inwards,) = (
        policy["spec"]["ingress"]
        for policy in of_kind(file, "NetworkPolicy")
        if policy["metadata"]["name"] == "orders-driver"
    )
    assert {each["port"] for rule in inwards for each in rule["ports"]} == ports


def test_the_page_names_the_manifests() -> None:
    page = (ROOT / "docs" / "guide" / "deploy.md").read_text("utf-8")
    for file in FILES:
        assert f"deploy/kubernetes/{file.name}" in page


SPARKS = {
    "SPARK_DRIVER_URL": "spark://driver",
    "SPARK_EXECUTOR_ID": "1",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "app",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.1",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "pod",
    "SPARK_EXECUTOR_MEMORY": "1g",
    "SPARK_JAVA_OPT_0": "-Da=1 2",
    "SPARK_JAVA_OPT_1": "-Db=3",
}
"""Variables of an executor's pod that Spark sets."""


def started(tools: Path, *arguments: str) -> list[str]:
    """What the image's entry point starts, a word in each line."""
    (tools / "java").write_text('#!/bin/bash\nprintf "%s\\n" java "$@"\n')
    (tools / "python").write_text(
        f'#!/bin/bash\n[[ $1 = -c ]] && exec {sys.executable} "$@"\nprintf "%s\\n" python "$@"\n'
    )
    for each in tools.iterdir():
        each.chmod(0o755)
    done = subprocess.run(
        ["bash", DEPLOY / "entrypoint.sh", *arguments],
        env={"PATH": f"{tools}:/usr/bin:/bin", **SPARKS},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_the_image_starts_the_job_or_an_executor(tmp_path: Path) -> None:
    assert started(tmp_path, "A=B c") == ["python", "/opt/orders/orders.py", "A=B c"]
    words = started(tmp_path, "executor")
    assert words[:5] == ["java", "-Da=1 2", "-Db=3", "-Xms1g", "-Xmx1g"]
    assert words[5] == "-cp"
    assert words[6].endswith("/pyspark/jars/*")
    given = dict(zip(words[8::2], words[9::2], strict=True))
    assert given == {
        "--driver-url": "spark://driver",
        "--executor-id": "1",
        "--cores": "2",
        "--app-id": "app",
        "--hostname": "10.0.0.1",
        "--resourceProfileId": "0",
        "--podName": "pod",
    }
