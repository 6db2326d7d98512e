"""A Kafka behind a TCP proxy that can freeze or cut the clients that go through it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pipeline.embedded import ExtraListener, start_servers


class Proxy:
    """Passes bytes on from its own port to another one of this machine."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._flowing = threading.Event()
        self._flowing.set()
        self._is_cut = False
        self._closed = False
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def freeze(self) -> None:
        """Let every connection stand still, as if the broker were stopped by a signal."""
        self._flowing.clear()

    def cut(self) -> None:
        """End every connection, and take no new one."""
        self._is_cut = True
        self._end_all()

    def heal(self) -> None:
        self._is_cut = False
        self._flowing.set()

    def close(self) -> None:
        self._closed = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._flowing.set()
        self._end_all()
        for thread in self._threads:
            thread.join(10)

    def _end_all(self) -> None:
        with self._lock:
            for each in self._sockets:
                _end(each)

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(near,), daemon=True))
            self._threads[-1].start()

    def _serve(self, near: socket.socket) -> None:
        if self._is_cut:
            near.close()
            return
        try:
            far = socket.create_connection(("127.0.0.1", self._target))
        except OSError:  # the broker has stopped
            near.close()
            return
        with self._lock:
            self._sockets |= {near, far}
        back = threading.Thread(target=self._pump, args=(far, near), daemon=True)
        back.start()
        self._pump(near, far)
        back.join()
        with self._lock:
            self._sockets -= {near, far}
        near.close()
        far.close()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self._flowing.wait()
                sink.sendall(data)
        except OSError:
            pass  # cut
        finally:
            _end(source)
            _end(sink)


def _end(each: socket.socket) -> None:
    try:
        each.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # ended already


@dataclass(frozen=True)
class ProxiedKafka:
    """One broker with two addresses. Clients of `proxied` never go round the proxy."""

    direct: str
    proxied: str
    proxy: Proxy


@contextmanager
def proxied_kafka() -> Iterator[ProxiedKafka]:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port: int = reserved.getsockname()[1]
    proxy = Proxy(port)
    try:
        listener = ExtraListener("PROXIED", port, proxy.port)
        with start_servers(postgres=False, extra_listeners=[listener]) as servers:
            yield ProxiedKafka(servers.bootstrap_servers, f"127.0.0.1:{proxy.port}", proxy)
            proxy.heal()
    finally:
        proxy.close()
