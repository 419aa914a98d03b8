"""A TCP proxy that cuts the connections of chosen processes, as a network between hosts may."""

import contextlib
import selectors
import socket
import threading
from types import TracebackType
from typing import Self

import psutil

__all__ = ["ProcessCut"]

_POLL_S = 0.05
_BYTES = 1 << 16


class ProcessCut:
    """Passes bytes between clients and one server. A context manager; any thread cuts and mends.

    While a process is cut off, no byte of its connections arrives, old or new ones, and none of
    them ends: the packets are lost.

    Args:
        listen: address of the proxy.
        target: address of the server; it may begin and end meanwhile.
    """

    def __init__(self, listen: tuple[str, int], target: tuple[str, int]) -> None:
        self._target = target
        self._cut: set[int] = set()
        self._owners: dict[socket.socket, int | None] = {}
        self._peers: dict[socket.socket, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(listen)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="process-cut", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()
        for each in [*self._peers, self._listener]:
            each.close()
        self._selector.close()

    def cut(self, pid: int) -> None:
        """From now on this process reaches nothing."""
        self._cut.add(pid)

    def mend(self) -> None:
        """All processes reach the server again, by new connections; old ones end."""
        self._cut.clear()

    # --- its thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        was_cut: set[int] = set()
        while not self._is_over.is_set():
            if was_cut and not self._cut:
                self._end_of(was_cut)
            was_cut = set(self._cut)
            for key, _ in self._selector.select(_POLL_S):
                sock = key.fileobj
                if sock is self._listener:
                    self._accept()
                elif isinstance(sock, socket.socket) and sock in self._peers:
                    self._pass(sock)

    def _accept(self) -> None:
        client, address = self._listener.accept()
        owner = _owner(address[1])
        try:
            server = socket.create_connection(self._target, timeout=5.0)
        except OSError:  # no server: the client sees a refused connection
            client.close()
            return
        for one, other in ((client, server), (server, client)):
            self._peers[one], self._owners[one] = other, owner
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(one, selectors.EVENT_READ)

    def _pass(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(_BYTES)
            if data and self._owners[sock] in self._cut:
                return  # lost
            if data:
                self._peers[sock].sendall(data)
                return
        except OSError:
            pass  # one end is gone
        if self._owners[sock] in self._cut:
            self._selector.unregister(sock)  # its end is lost, too
        else:
            self._end(sock)

    def _end_of(self, pids: set[int]) -> None:
        for sock in [each for each, owner in self._owners.items() if owner in pids]:
            self._end(sock)

    def _end(self, sock: socket.socket) -> None:
        for each in (sock, self._peers.get(sock)):
            if each is not None and each in self._peers:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(each)
                del self._peers[each], self._owners[each]
                each.close()


def _owner(port: int) -> int | None:
    """The process that has this local port; None: it is gone."""
    for each in psutil.net_connections(kind="tcp"):
        if each.laddr and each.laddr.port == port and each.raddr:
            return int(each.pid) if each.pid else None
    return None
