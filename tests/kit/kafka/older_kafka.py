"""Kafka 3.9, the last release before the feature ``transaction.version``'s second level.

Fetched like the release that Sluice embeds, once per user, with checksums pinned beside the tests.
"""

from pathlib import Path

from sluice.runtime.embedded.ivy import Artifact, Bundle, fetch, parse_checksums

OLDER_VERSION = "3.9.1"
_CHECKSUMS = Path(__file__).parents[2] / "data" / f"kafka-{OLDER_VERSION}.sha256"


def older_kafka_jars() -> Path:
    """Directory with the older broker's jars; fetched at the first call of a user."""
    kafka = "org.apache.kafka"
    bundle = Bundle(
        name=f"kafka-{OLDER_VERSION}",
        artifacts=(
            Artifact(organisation=kafka, name="kafka_2.13", version=OLDER_VERSION),
            Artifact(
                organisation=kafka, name="kafka-tools", version=OLDER_VERSION, transitive=False
            ),
            Artifact(
                organisation="org.apache.logging.log4j", name="log4j-slf4j-impl", version="2.25.4"
            ),
        ),
        checksums=parse_checksums(_CHECKSUMS.read_text("ascii")),
    )
    return fetch(bundle)
