"""Which image the containers of a test run from, and how testcontainers is to reach them."""

import contextlib
import os
from collections.abc import Sequence

from testcontainers.core.config import ConnectionMode, testcontainers_config
from testcontainers.core.docker_client import DockerClient

# Servers advertise 127.0.0.1 to this host, wherever the tests themselves run; and the clean-up
# container of testcontainers is an image that a machine without a registry cannot get.
testcontainers_config.connection_mode_override = ConnectionMode.docker_host
if "TESTCONTAINERS_RYUK_DISABLED" not in os.environ:
    testcontainers_config.ryuk_disabled = True


def find_image(variable: str, images: Sequence[str]) -> str:
    """What the environment variable names, else the first image at hand, else the last one."""
    chosen = os.environ.get(variable)
    if chosen:
        return chosen
    client = DockerClient().client
    with contextlib.closing(client):
        present = {tag for image in client.images.list() for tag in image.tags}
    return next((image for image in images if image in present), images[-1])
