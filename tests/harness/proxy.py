"""TCP proxies in front of Kafka and Postgres: they freeze, cut, slow down, and act at one exact request."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from pipeline.embedded import ExtraListener, start_servers
from tests.harness.requests import KafkaRequests, PostgresRequests, Splitter

__all__ = ["Loss", "ProxiedKafka", "Proxy", "Trap", "kafka_proxy", "postgres_proxy", "proxied_kafka"]


class Loss(StrEnum):
    """What the client and the server do not get of a request, before their connection is reset."""

    NOTHING = "nothing"  # the request goes on
    REQUEST = "request"  # the server never sees it
    HALF = "half"  # the server sees a part of it
    ANSWER = "answer"  # the server has done it, the client does not learn that


@dataclass
class Trap:
    """Waits for requests; the first `times` of them spring it: `act` is called before anything is passed on."""

    matches: Callable[[bytes], bool]
    act: Callable[[], object]
    loss: Loss
    times: int
    sprung: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def is_sprung(self) -> bool:
        return self.sprung > 0

    def takes(self, request: bytes) -> bool:
        with self.lock:
            if self.sprung >= self.times or not self.matches(request):
                return False
            self.sprung += 1
            return True


class Proxy:
    """Passes bytes on from its own port to another one of this machine."""

    def __init__(self, target: int, splitter: Callable[[], Splitter] | None = None) -> None:
        """Without a `splitter` it does not know requests, and has no traps."""
        self._target = target
        self._splitter = splitter
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._flowing = threading.Event()
        self._flowing.set()
        self._closing = threading.Event()
        self._is_cut = False
        self._lag = 0.0
        self._traps: list[Trap] = []
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    # --- faults

    def freeze(self) -> None:
        """Let every connection stand still, as if the server were stopped by a signal."""
        self._flowing.clear()

    def cut(self) -> None:
        """End every connection, and take no new one."""
        self._is_cut = True
        self._end_all()

    def reset(self) -> None:
        """End every connection; new ones are welcome."""
        self._end_all()

    def slow(self, seconds: float) -> None:
        """Pass everything on so much later, in both directions."""
        self._lag = seconds

    def trap(
        self,
        matches: Callable[[bytes], bool],
        act: Callable[[], object] = lambda: None,
        *,
        loss: Loss = Loss.NOTHING,
        times: int = 1,
    ) -> Trap:
        """Act at exactly these requests, by whatever connection they come."""
        assert self._splitter is not None, "this proxy does not know requests"
        trap = Trap(matches, act, loss, times)
        self._traps.append(trap)
        return trap

    def heal(self) -> None:
        self._is_cut = False
        self._lag = 0.0
        self._traps = []
        self._flowing.set()

    def close(self) -> None:
        self._closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._flowing.set()
        self._end_all()
        for thread in self._threads:
            thread.join(10)

    # --- passing on

    def _end_all(self) -> None:
        with self._lock:
            for each in self._sockets:
                _end(each)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._threads.append(threading.Thread(target=self._serve, args=(near,), daemon=True))
            self._threads[-1].start()

    def _serve(self, near: socket.socket) -> None:
        if self._is_cut:
            near.close()
            return
        try:
            far = socket.create_connection(("127.0.0.1", self._target))
        except OSError:  # the server has stopped
            near.close()
            return
        for each in (near, far):  # or small answers wait for what was passed on before to be acknowledged
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._sockets |= {near, far}
        connection = _Connection(near, far)
        back = threading.Thread(target=self._pump, args=(connection, far, near), daemon=True)
        back.start()
        self._pump(connection, near, far)
        back.join()
        with self._lock:
            self._sockets -= {near, far}
        near.close()
        far.close()

    def _pump(self, connection: _Connection, source: socket.socket, sink: socket.socket) -> None:
        forward = source is connection.near
        splitter = self._splitter() if self._splitter is not None and forward else None
        try:
            while data := source.recv(65536):
                self._flowing.wait()
                if self._lag:
                    self._closing.wait(self._lag)
                for part in splitter.feed(data) if splitter else [data]:
                    if forward:
                        self._pass_on(part, connection)
                    elif connection.loses_answers:
                        return
                    else:
                        sink.sendall(part)
        except OSError:
            pass  # cut
        finally:
            _end(source)
            _end(sink)

    def _pass_on(self, request: bytes, connection: _Connection) -> None:
        trap = next((trap for trap in self._traps if trap.takes(request)), None)
        if trap is None:
            connection.far.sendall(request)
            return
        trap.act()
        if trap.loss is Loss.REQUEST:
            raise ConnectionResetError
        if trap.loss is Loss.HALF:
            connection.far.sendall(request[: len(request) // 2])
            raise ConnectionResetError
        connection.loses_answers = trap.loss is Loss.ANSWER
        connection.far.sendall(request)


@dataclass
class _Connection:
    near: socket.socket
    far: socket.socket
    loses_answers: bool = False


def _end(each: socket.socket) -> None:
    try:
        each.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # ended already


def kafka_proxy(target: int) -> Proxy:
    return Proxy(target, KafkaRequests)


def postgres_proxy(target: int) -> Proxy:
    return Proxy(target, PostgresRequests)


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
    proxy = kafka_proxy(port)
    try:
        listener = ExtraListener("PROXIED", port, proxy.port)
        with start_servers(postgres=False, extra_listeners=[listener]) as servers:
            yield ProxiedKafka(servers.bootstrap_servers, f"127.0.0.1:{proxy.port}", proxy)
            proxy.heal()
    finally:
        proxy.close()
