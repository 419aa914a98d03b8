#!/usr/bin/env bash
# Builds the images of the bed, if the Docker engine (DOCKER_HOST) does not have them.
set -euo pipefail
cd "$(dirname "$0")/../.."
for image in local/jre:17 local/kafka:4.3.1 local/hdfs:3.5.0 local/zookeeper:3.9.5; do
  docker image inspect "$image" >/dev/null 2>&1 && continue
  docker version >/dev/null 2>&1 || {
    echo "No Docker engine answers. Run 'docker/engine.sh start DIR' as root and set DOCKER_HOST=unix://DIR/docker.sock." >&2
    exit 1
  }
  exec docker/build.sh
done
