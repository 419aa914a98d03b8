"""``sluice coordinator``: the coordinator of a job in a process of its own."""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from sluice.runtime.checkpoint.checkpoint_store import CheckpointStore
from sluice.runtime.election.ha_settings import DEFAULT_TIMEOUT_S, HaSettings, await_lead
from sluice.runtime.election.leader_election import ElectionView, Leader, LeaderElection
from sluice.runtime.errors import JobFinishedError, NotLeaderError
from sluice.runtime.leading.leader import JobLeader, LeaderSettings
from sluice.runtime.service.listening.listener import Listener
from sluice.runtime.service.listening.service_settings import ServiceSettings
from sluice.runtime.spark.run.hosting.job_description import (
    JobDescription,
    publish,
    read_description,
)
from sluice.runtime.storage.file_system_opening import absolute_uri, needs_jvm, open_file_system

__all__ = ["app"]

log = logging.getLogger(__name__)

app = typer.Typer(help="Run the coordinator of a job in a process of its own.")

_READ_S = 0.5
_RESIGN_S = 3.0


@app.callback()
def _coordinator() -> None:
    """Keeps `start` a command of its own."""


@app.command()
def start(
    checkpoint: Annotated[
        str, typer.Option(help="Checkpoint directory of the job: a path or a URI.")
    ],
    host: Annotated[str, typer.Option(help="Address of this machine for drivers.")] = "127.0.0.1",
    bind_address: Annotated[
        str | None, typer.Option(help="Address to listen on. Default: --host.")
    ] = None,
    port: Annotated[str, typer.Option(help="A port, or a range such as 7100-7115; 0: any.")] = "0",
    hosts: Annotated[
        int, typer.Option(min=1, help="Start regions once so many drivers have joined.")
    ] = 1,
    report_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds to wait for running tasks after a takeover.")
    ] = 10.0,
    host_timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds after which a silent driver is lost.")
    ] = 10.0,
    ha: Annotated[
        str | None,
        typer.Option(
            help="Elect a leader among several coordinators: lease, or zookeeper://hosts/path."
        ),
    ] = None,
    ha_timeout: Annotated[
        float, typer.Option(help="Seconds of silence after which a standby takes over.")
    ] = DEFAULT_TIMEOUT_S,
) -> None:
    """Lead the job of a checkpoint directory until it ends; its drivers host the regions.

    The job's program runs with Job(coordinator="process"). SIGTERM ends this process, not the job:
    tasks continue until another coordinator takes over. With --ha, further coordinators of the same
    directory are standbys. One of them takes over at once.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("kafka").setLevel(logging.WARNING)  # it reports each connection
    uri, elects = absolute_uri(checkpoint), HaSettings.of(ha, ha_timeout)
    settings = LeaderSettings(
        report_timeout_s=report_timeout, host_timeout_s=host_timeout, hosts=hosts
    )
    candidates: list[LeaderElection] = []
    signal.signal(signal.SIGTERM, lambda *_: _give_up(candidates, 143))
    signal.signal(signal.SIGINT, lambda *_: _give_up(candidates, 130))
    with contextlib.ExitStack() as stack:
        jvm = None
        if needs_jvm(uri):
            from sluice.runtime.storage.hadoop_jvm import hadoop_jvm

            jvm = stack.enter_context(hadoop_jvm())
        store = CheckpointStore(open_file_system(uri, jvm))
        service = ServiceSettings.of({}, host=host, bind_address=bind_address, port=port)
        listener = stack.enter_context(Listener.of(service))
        election = None if elects is None else _elected(store, elects, candidates, stack)
        description = _awaited(store)
        leader = JobLeader(
            description=description,
            store=store,
            election=election,
            listener=listener,
            open_fs=lambda each: open_file_system(each, jvm),
            settings=settings,
            on_leading=lambda address: typer.echo(f"leading the job of {uri} at {address}"),
            keep_description=lambda: publish(store.fs, description),
        )
        try:
            leader.run()
        except NotLeaderError as err:
            log.warning("this coordinator does not lead the job: error=%s", err)
            _give_up(candidates, 1)
        if election is not None:
            election.resign(is_finished=True)


def _elected(
    store: CheckpointStore,
    ha: HaSettings,
    candidates: list[LeaderElection],
    stack: contextlib.ExitStack,
) -> LeaderElection:
    """Wait as a standby until this process leads; it exits in order when the job has ended.

    The candidate is added to the list before.
    """
    name = _awaited(store).plan.name
    election = stack.enter_context(ha.election(store.fs, name=name, role="coordinator"))
    candidates.append(election)
    shown: list[Leader | None] = []

    def wait(view: ElectionView) -> None:
        if shown != [view.leader]:
            shown[:] = [view.leader]
            log.info("standby: leader=%s", view.leader and view.leader.candidate)

    try:
        session = await_lead(election, check=lambda: None, on_wait=wait)
    except JobFinishedError as err:
        log.info("the job has ended: %s", err)
        raise typer.Exit from err
    log.info("elected: session=%s", session)
    return election


def _awaited(store: CheckpointStore) -> JobDescription:
    """The job, as soon as a driver has described it."""
    has_waited = False
    while (found := read_description(store.fs)) is None:
        if not has_waited:
            log.info("waiting for a driver to describe its job: checkpoint=%s", store.fs.uri)
        has_waited = True
        time.sleep(_READ_S)  # no event reports a file of another process
    return found


def _give_up(candidates: Sequence[LeaderElection], code: int) -> None:
    """Give up the lead, so that a standby need not wait for the end of the lease; then leave.

    A decision that is under way is published before the next leader's fencing record, or not at
    all. The lead is given up in another thread, because this one may hold a lock of the election.
    """
    for candidate in candidates:
        ending = threading.Thread(target=candidate.resign, daemon=True)
        ending.start()
        ending.join(_RESIGN_S)  # the store may hang: then the lease ends by itself
    _leave(code)


def _leave(code: int) -> None:
    """End this process at once. An orderly end would abort what running tasks have open."""
    os._exit(code)
