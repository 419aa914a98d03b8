#!/usr/bin/env bash
# Builds local/jre:17 and local/kafka:4.3.1 out of this host's JDK and the jars that the embedded
# broker uses. Needs: a Docker engine (DOCKER_HOST), a JDK 17 or newer, busybox, `make setup`.
set -euo pipefail
cd "$(dirname "$0")"
sluice=${SLUICE:-../.venv/bin/sluice}
# The classic builder: newer clients ask for a plug-in that a plain installation lacks.
export DOCKER_BUILDKIT=0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

jre/make-rootfs.sh "$work/rootfs.tar"
docker import --change 'ENV PATH=/bin:/usr/bin' "$work/rootfs.tar" local/jre:17 >/dev/null
cp -R kafka "$work/kafka"
jars=$("$sluice" kafka fetch)
mkdir "$work/kafka/jars"
cp "$jars"/*.jar "$work/kafka/jars/"
docker build --quiet --tag local/kafka:4.3.1 "$work/kafka" >/dev/null
docker image ls --format '{{.Repository}}:{{.Tag}}  {{.Size}}' --filter 'reference=local/*'
