#!/usr/bin/env bash
# Builds local/jre:17, local/python:3, local/kafka:4.3.1, local/hdfs:3.5.0 and local/zookeeper:3.9.5
# from this host's JDK and Python and the jars of the embedded servers. Needs: a Docker engine
# (DOCKER_HOST), a JDK 17 or newer, busybox, `make setup`.
set -euo pipefail
cd "$(dirname "$0")"
sluice=${SLUICE:-../.venv/bin/sluice}
# The classic builder: newer clients need a plug-in that a plain installation lacks.
export DOCKER_BUILDKIT=0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

jre/make-rootfs.sh "$work/rootfs.tar"
docker import --change 'ENV PATH=/bin:/usr/bin' "$work/rootfs.tar" local/jre:17 >/dev/null
cp -R kafka hdfs python zookeeper "$work"
python/make-rootfs.sh "$work/python/rootfs" "$(dirname "$sluice")/python"
docker build --quiet --tag local/python:3 "$work/python" >/dev/null
mkdir "$work"/{kafka,hdfs,zookeeper}/jars
jars=$("$sluice" kafka fetch)
cp "$jars"/*.jar "$work/kafka/jars/"
jars=$("$sluice" hdfs fetch)
xargs -d '\n' cp -t "$work/hdfs/jars/" <<<"$jars"
jars=$("$(dirname "$sluice")/python" -c '
from sluice.runtime.embedded.zookeeper.embedded_zookeeper import zookeeper_class_path
print(*zookeeper_class_path(), sep="\n")')
xargs -d '\n' cp -t "$work/zookeeper/jars/" <<<"$jars"
docker build --quiet --tag local/kafka:4.3.1 "$work/kafka" >/dev/null
docker build --quiet --tag local/hdfs:3.5.0 "$work/hdfs" >/dev/null
docker build --quiet --tag local/zookeeper:3.9.5 "$work/zookeeper" >/dev/null
docker image ls --format '{{.Repository}}:{{.Tag}}  {{.Size}}' --filter 'reference=local/*'
