#!/usr/bin/env bash
# Starts a Docker engine without systemd, for machines that run none. Needs root.
#   docker/engine.sh start DIR    then: export DOCKER_HOST=unix://DIR/docker.sock
#   docker/engine.sh stop DIR
set -euo pipefail

usage() { echo "usage: $0 start|stop DIR" >&2; exit 2; }
[[ $# -eq 2 ]] || usage
directory=$(realpath -m "$2")
socket=unix://$directory/docker.sock
wait_tenths=6000 # ten minutes: a busy machine needs long, and a failed engine ends at once

answers() { docker --host "$socket" version >/dev/null 2>&1; }

start() {
  mkdir -p "$directory"
  # Published ports listen on loopback only. DNS and masquerading keep their defaults: without them
  # an unknown name costs 5 seconds in a container.
  setsid nohup dockerd --host "$socket" --data-root "$directory/data" \
    --exec-root "$directory/exec" --pidfile "$directory/dockerd.pid" --ip 127.0.0.1 \
    >"$directory/dockerd.log" 2>&1 </dev/null &
  local engine=$!
  for ((i = 0; i < wait_tenths; i++)); do
    answers && return
    kill -0 "$engine" 2>/dev/null || break
    sleep 0.1
  done
  echo "The Docker engine did not start; the last lines of $directory/dockerd.log:" >&2
  tail -n 20 "$directory/dockerd.log" >&2
  return 1
}

stop() {
  [[ -f $directory/dockerd.pid ]] || return 0
  local engine containers
  engine=$(<"$directory/dockerd.pid")
  # Containers of a killed test run would keep their mounts busy.
  containers=$(docker --host "$socket" ps --quiet 2>/dev/null || true)
  # shellcheck disable=SC2086  # one word per container
  [[ -z $containers ]] || docker --host "$socket" kill $containers >/dev/null 2>&1 || true
  kill "$engine" 2>/dev/null || return 0
  for ((i = 0; i < wait_tenths; i++)); do
    kill -0 "$engine" 2>/dev/null || return 0
    sleep 0.1
  done
  echo "The Docker engine (pid $engine) did not end." >&2
  return 1
}

case $1 in
  start) start ;;
  stop) stop ;;
  *) usage ;;
esac
