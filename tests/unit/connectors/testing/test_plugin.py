"""The plugin is loaded wherever Sluice is installed: it imports pytest, and starts nothing."""

import importlib
import pickle
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sluice import KafkaConnection
from sluice.connectors.testing.killing import STEPS
from sluice.connectors.testing.topics import Topic
from tests.chaos.beds import CONTINUOUSLY, FILES, IN_BATCHES
from tests.integration.test_object_files import OF_UPLOADS

ROOT = Path(__file__).parents[4]
HEAVY = {"anyio", "confluent_kafka", "kafka", "numpy", "psutil", "py4j", "pyarrow", "pyspark"}


def test_importing_the_plugin_imports_no_other_package() -> None:
    code = "import sys, sluice.connectors.testing.plugin; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert HEAVY & set(done.stdout.split()) == set()


def test_the_entry_point_names_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (module,) = project["entry-points"]["pytest11"].values()
    fixtures = ("sluice_kafka", "sluice_topic", "sluice_hdfs", "sluice_spark")
    assert all(hasattr(importlib.import_module(module), name) for name in fixtures)


@pytest.mark.parametrize("step", STEPS)
def test_a_named_step_is_reached_by_each_engine_and_by_files(step: str) -> None:
    reached = (set(IN_BATCHES), set(CONTINUOUSLY))
    assert all(set(STEPS[step]) & each for each in reached)
    assert set(STEPS[step]) <= {*IN_BATCHES, *FILES, *OF_UPLOADS, "after-fencing"}


def test_a_topic_is_its_name_as_text_and_keeps_its_cluster_in_another_process() -> None:
    topic = Topic("orders", KafkaConnection(bootstrap_servers="here:1"))
    assert f"{topic}" == "orders"
    copy = pickle.loads(pickle.dumps(topic))
    assert (copy, copy.bootstrap) == (topic, "here:1")
