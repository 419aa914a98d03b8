"""``sluice serve``: one service for the jobs of a registry."""

import contextlib
import logging
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from sluice.runtime.errors import ConfigError
from sluice.runtime.serve.host_drains import HostDrains
from sluice.runtime.serve.serve_app import serve_app
from sluice.runtime.serve.serve_server import (
    ServeServer,
    checked_tls,
    made_token,
    read_token,
    state_directory,
)
from sluice.runtime.serve.served_jobs import ServedJobs
from sluice.runtime.serve.service_calls import service_calls
from sluice.runtime.serve.store_access import StoreAccess
from sluice.runtime.serve.submissions import Submissions, SubmitSettings
from sluice.runtime.storage.file_system_opening import absolute_uri

__all__ = ["serve"]


def serve(
    registry: Annotated[
        str,
        typer.Option(
            help="Directory in which jobs register: Job(registry=...). A path or URI.",
            envvar="SLUICE_REGISTRY",
        ),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")] = 8080,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the token. Default: a file of this user, made if absent."),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, PEM.")] = None,
    submit_dir: Annotated[
        Path | None,
        typer.Option(help="Directory of programs that requests may start. Default: none."),
    ] = None,
    submit_env: Annotated[
        list[str] | None,
        typer.Option(help="Environment variable that a submission may set; repeatable."),
    ] = None,
    submit_conf: Annotated[
        list[str] | None,
        typer.Option(
            help="Beginning of further Spark settings that a submission may set; repeatable."
        ),
    ] = None,
    keep_ended: Annotated[
        int, typer.Option(min=0, help="Ended jobs that stay in the registry.")
    ] = 1000,
    state_dir: Annotated[
        Path | None,
        typer.Option(help="Directory for the made token, and logs of submissions."),
    ] = None,
) -> None:
    """Serve all jobs of a registry: REST, a page, and the commands of `sluice service`."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    state = state_dir or state_directory()
    tls = checked_tls(tls_cert, tls_key)
    made = state / "service-token"
    token = made_token(made) if token_file is None else read_token(token_file)
    if submit_dir is not None and not submit_dir.is_dir():
        raise ConfigError(
            "the submit directory does not exist", {"submit-dir": submit_dir}, "Create it."
        )
    uri = absolute_uri(registry)
    submissions = Submissions(
        SubmitSettings(
            directory=submit_dir,
            kept_in=state / "submissions",
            registry=uri,
            env=frozenset(submit_env or ()),
            conf=tuple(submit_conf or ()),
        )
    )
    with contextlib.ExitStack() as stack:
        stores = stack.enter_context(StoreAccess())
        jobs = stack.enter_context(ServedJobs(uri, stores, kept=keep_ended))
        app = serve_app(service_calls(jobs, HostDrains(jobs), submissions), token)
        server = stack.enter_context(ServeServer(app, host=host, port=port, tls=tls))
        typer.echo(f"service of {uri} at {server.address}, token in {token_file or made}")
        _await_signal()


def _await_signal() -> None:
    """Ctrl-C and SIGTERM end the service in order; jobs and submitted programs continue."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()
