"""Keep the engines of a state partition in one process, and run all its tasks there.

Spark hands its idle Python workers out in turn, so the next batch of a shard usually runs in
another worker, without the shard's engine. So a worker does not run such a task itself. It passes
the socket of the task on to the *engine process* of the query, the operator and the partition, and
waits:

    Spark --- task, socket ---> worker --- name of the engine process ---> broker
                 |                 |                                         | forks, and
                 |                 +-- socket, first message --+             | connects both
                 |                                             v             v
                 +<======= rows, results, state ======> engine process <-----+

The broker and the engine processes are forked from tidegate's daemon (`daemon.py`), which has the
libraries loaded. A worker whose engine process ends without an answer ends as well, so that Spark
sees a task that failed. An engine process whose worker ends, because Spark gave up the task, ends
too. An engine process that is still busy with another attempt of a task is not waited for: the
broker forks a new one. In all cases the token in the state says which engine may be used (see
`state`).

Before Spark 4.3, the first message of a task has no length, so workers run all tasks themselves.
They also do so if the command of an operator is so large (1 MB) that Spark broadcasts it.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import re
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

#: An engine process waits this long for its next task, or three times as long as for the last one.
IDLE_SECONDS = 120.0
#: The longest wait for a next task.
MOST_IDLE_SECONDS = 3600.0
#: A busy process gets this long to end its task: Spark may have the results a little earlier.
BUSY_SECONDS = 0.5
#: How often the broker looks for idle processes, and for the end of the daemon.
_LOOK_SECONDS = 1.0

_QUERY = "sql.streaming.queryId"
#: Says in the pickled command of an operator which partitions have shards.
_SHARDS = re.compile(rb"tidegate shards in partitions ([0-9 ]+)\.")
_LENGTH = struct.Struct("!i")
_DONE = b"d"
_NAME_BYTES = 256


# ---- the broker: a process that starts engine processes ---------------------------------------


@dataclass
class _Owner:
    """An engine process, as the broker sees it."""

    channel: socket.socket
    busy: bool
    used: float
    patience: float


class Broker:
    """Starts one engine process per name, and connects it with the workers that have its tasks."""

    def __init__(self, requests: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        self._requests = requests
        self._serve = serve
        self._owners: dict[bytes, _Owner] = {}
        self._retired: list[_Owner] = []
        self._used: dict[bytes, float] = {}
        self._poller = select.poll()
        self._poller.register(requests, select.POLLIN)

    def run(self, daemon: int) -> None:
        """Serve requests until the daemon, the parent of this process, has ended."""
        while os.getppid() == daemon:
            ready = {fd for fd, _ in self._poller.poll(_LOOK_SECONDS * 1000)}
            self._listen(ready)
            if self._requests.fileno() in ready:
                name, worker = receive(self._requests, _NAME_BYTES)
                self._assign(name, worker)
            self._end_idle()

    def _listen(self, ready: set[int]) -> None:
        """Take note of processes that have finished a task or have ended."""
        for name, owner in list(self._owners.items()):
            if owner.channel.fileno() in ready and not self._finished(owner):
                self._drop(self._owners.pop(name))
        for owner in list(self._retired):
            if owner.channel.fileno() in ready:
                self._retired.remove(owner)
                self._drop(owner)

    def _finished(self, owner: _Owner) -> bool:
        """True if the process is ready for another task, False if it has ended."""
        try:
            owner.busy = owner.channel.recv(1) != _DONE
        except OSError:
            return False
        owner.used = time.monotonic()
        return not owner.busy

    def _free(self, owner: _Owner) -> bool:
        """True if the process has no task, or finishes it within a moment."""
        if owner.busy:
            owner.channel.settimeout(BUSY_SECONDS)
            self._finished(owner)
            owner.channel.settimeout(None)
        return not owner.busy

    def _assign(self, name: bytes, worker: socket.socket) -> None:
        """Connect a worker with the process of this name."""
        now = time.monotonic()
        pause = now - self._used.get(name, now)
        self._used[name] = now
        owner = self._owners.get(name)
        with worker:
            if owner is None or not self._free(owner) or not _give(owner, worker):
                if owner is not None:
                    self._retired.append(owner)
                owner = self._owners[name] = self._fork(worker)
                _give(owner, worker)
        owner.busy = True
        owner.patience = min(max(IDLE_SECONDS, 3 * pause), MOST_IDLE_SECONDS)

    def _fork(self, worker: socket.socket) -> _Owner:
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            mine.close()
            worker.close()
            self._requests.close()
            for other in (*self._owners.values(), *self._retired):
                other.channel.close()
            _call_me("tidegate-engine")
            _end_with(self._serve, its)
        its.close()
        self._poller.register(mine, select.POLLIN)
        return _Owner(mine, True, time.monotonic(), IDLE_SECONDS)

    def _end_idle(self) -> None:
        now = time.monotonic()
        for name, owner in list(self._owners.items()):
            if not owner.busy and now - owner.used > owner.patience:
                self._drop(self._owners.pop(name))
        self._used = {n: at for n, at in self._used.items() if now - at < MOST_IDLE_SECONDS}

    def _drop(self, owner: _Owner) -> None:
        """Close the channel to a process, which makes it end when it is idle."""
        self._poller.unregister(owner.channel)
        owner.channel.close()


def _give(owner: _Owner, worker: socket.socket) -> bool:
    """Connect an engine process with a worker; return False if the process has ended."""
    try:
        socket.send_fds(owner.channel, [b"t"], [worker.fileno()])
    except OSError:
        return False
    return True


def _call_me(name: str) -> None:
    """Name this process, as `ps` and `top` show it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name, encoding="ascii")


def _end_with(function: Callable[..., None], *arguments: Any) -> NoReturn:
    """Run a function in a forked process, and end the process."""
    code = 1
    try:
        function(*arguments)
        code = 0
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def receive(channel: socket.socket, size: int) -> tuple[bytes, socket.socket]:
    """Receive bytes together with a socket; EOFError if the other end is closed."""
    data, sockets, _, _ = socket.recv_fds(channel, size, 1)
    if not data or not sockets:
        raise EOFError
    return data, socket.socket(fileno=sockets[0])


# ---- an engine process --------------------------------------------------------------------------


def serve(broker: socket.socket) -> None:
    """Run the tasks that come from the broker, until it closes the channel."""
    while True:
        try:
            _, worker = receive(broker, 1)
        except EOFError:
            return
        with worker:
            code = _run(worker)
            broker.send(_DONE)
            _answer(worker, code)
        if code:
            return
        gc.collect()


def _run(worker: socket.socket) -> int:
    """Run one task of a worker; return the code with which the worker must end, or 0."""
    _, spark = receive(worker, 1)
    files, message = (_exactly(worker, _receive_int(worker)) for _ in range(2))
    _take_over(json.loads(files))
    over = threading.Event()
    watch = threading.Thread(target=_end_if_closed, args=(worker, over), daemon=True)
    watch.start()
    with spark:
        code = _run_task(spark, message)
    over.set()
    return code


def _answer(worker: socket.socket, code: int) -> None:
    with contextlib.suppress(OSError):
        worker.sendall(_LENGTH.pack(code))
        worker.shutdown(socket.SHUT_RDWR)


def _end_if_closed(worker: socket.socket, over: threading.Event) -> None:
    """End this process if the worker ends before its task: nobody reads the results."""
    with contextlib.suppress(OSError):
        worker.recv(1)
    if not over.is_set():
        os._exit(1)


def _run_task(spark: socket.socket, message: bytes) -> int:
    size = int(os.environ.get("SPARK_BUFFER_SIZE", "65536"))
    with (
        os.fdopen(os.dup(spark.fileno()), "rb", size) as infile,
        os.fdopen(os.dup(spark.fileno()), "wb", size) as outfile,
    ):
        try:
            _invoke(infile, outfile, message, knows_broadcasts=True)
        except SystemExit as error:
            return error.code if isinstance(error.code, int) else 1
    return 0


def _receive_int(channel: socket.socket) -> int:
    return int(_LENGTH.unpack(_exactly(channel, _LENGTH.size))[0])


def _exactly(channel: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        read = channel.recv_into(view)
        if read == 0:
            raise EOFError
        view = view[read:]
    return bytes(data)


# ---- a worker -----------------------------------------------------------------------------------


def start() -> None:
    """Start the broker, and make workers pass tasks on; for a daemon with a single thread.

    Does nothing where the tasks of Spark are not understood.
    """
    try:
        from pyspark import worker
        from pyspark.messages import SparkSocketMessageReceiver  # noqa: F401
        from pyspark.serializers import SpecialLengths
        from pyspark.util import with_faulthandler
        from pyspark.worker_message import WorkerInitInfo  # noqa: F401
    except ImportError:
        return
    if not hasattr(SpecialLengths, "START_OF_INIT_MESSAGE"):
        return
    # The daemon makes a process group later, and ends it with a signal: join that group.
    os.setpgid(0, 0)
    daemon = os.getpid()
    requests, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        requests.close()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        _call_me("tidegate-broker")
        _end_with(Broker(its, serve).run, daemon)
    its.close()

    @with_faulthandler
    def main(infile: Any, outfile: BinaryIO) -> None:
        run_or_pass_on(requests, infile, outfile)

    worker.main = main


def mark(partitions: Iterable[int]) -> str:
    """Return a text for the command of an operator: only its tasks with shards are passed on."""
    return f"tidegate shards in partitions {' '.join(map(str, sorted(set(partitions))))}."


def run_or_pass_on(requests: socket.socket, infile: Any, outfile: BinaryIO) -> None:
    """Run one task in this worker, or have its engine process run it."""
    from pyspark.serializers import SpecialLengths

    # Nothing may stay in the buffer of `infile`, because another process reads on.
    if _read_int(infile.raw) != SpecialLengths.START_OF_INIT_MESSAGE:
        raise RuntimeError("a task of Spark began with something else than its description")
    message = _read(infile.raw, _read_int(infile.raw))
    name, broadcast = _described(message)
    # With encryption, Spark sends the values of broadcasts to one process only.
    known = name is not None and broadcast.conn_info is None
    answer = None
    if name is not None and known:
        files = _set_up(broadcast.variables)
        if None not in files.values():
            parts = [json.dumps(files).encode(), message]
            answer = _pass_on(requests, name, infile.fileno(), parts)
    if answer is None:
        _invoke(infile, outfile, message, knows_broadcasts=known)
    elif answer:
        sys.exit(answer)


def _described(message: bytes) -> tuple[bytes | None, Any]:
    """Return the name of a task's engine process, or None if it has none, and its broadcasts."""
    from pyspark.messages import ZeroCopyByteStream
    from pyspark.util import PythonEvalType
    from pyspark.worker_message import WorkerInitInfo

    shards = _SHARDS.search(message)
    if shards is None:
        return None, None
    info: Any = WorkerInitInfo.from_stream(ZeroCopyByteStream(memoryview(message)))
    query = info.task_context.local_properties.get(_QUERY)
    partition = info.task_context.partition_id
    if (
        info.eval_type != PythonEvalType.SQL_TRANSFORM_WITH_STATE_PANDAS_UDF
        or query is None
        or partition not in map(int, shards[1].split())
    ):
        return None, None
    operator = hashlib.blake2b(digest_size=16)
    for udf in info.udf_info:
        for command in udf.udfs:
            operator.update(command)
    name = f"{query} {operator.hexdigest()} {partition}".encode()
    assert len(name) <= _NAME_BYTES
    return name, info.broadcast


def _set_up(variables: list[Any]) -> dict[int, str | None]:
    """Add and remove broadcasts as Spark wants it; return the file of each that the task may use.

    Spark keeps track of the broadcasts that each worker has, and only tells what has changed.
    """
    from pyspark.core.broadcast import _broadcastRegistry
    from pyspark.worker_util import setup_broadcasts

    setup_broadcasts(variables, None, None)
    return {number: getattr(each, "_path", None) for number, each in _broadcastRegistry.items()}


def _take_over(files: dict[str, str]) -> None:
    """Take over the broadcasts of the worker; known ones keep their values."""
    from pyspark.core.broadcast import Broadcast, _broadcastRegistry

    new = {
        int(number): _broadcastRegistry.get(int(number)) or Broadcast(path=path)
        for number, path in files.items()
    }
    _broadcastRegistry.clear()
    _broadcastRegistry.update(new)


def _pass_on(requests: socket.socket, name: bytes, spark: int, parts: list[bytes]) -> int | None:
    """Run a task in an engine process; return its exit code, or None without a broker."""
    mine, its = socket.socketpair()
    with mine:
        with its:
            try:
                socket.send_fds(requests, [name], [its.fileno()])
            except OSError:
                return None
        try:
            socket.send_fds(mine, [b"t"], [spark])
            for part in parts:
                mine.sendall(_LENGTH.pack(len(part)))
                mine.sendall(part)
            return _receive_int(mine)
        except (OSError, EOFError):
            return 1


def _invoke(infile: Any, outfile: BinaryIO, message: bytes, *, knows_broadcasts: bool) -> None:
    """Run a task whose first message has been read."""
    import pyspark.worker
    from pyspark.messages import SparkSocketMessageReceiver, ZeroCopyByteStream

    worker: Any = pyspark.worker

    class Received(SparkSocketMessageReceiver):
        def _do_get_init_message(self) -> ZeroCopyByteStream:
            stream = ZeroCopyByteStream(memoryview(message))
            stream.finish()
            return stream

    set_up = worker.setup_broadcasts
    if knows_broadcasts:
        worker.setup_broadcasts = lambda *variables: None
    try:
        worker.invoke_udf(Received(infile), outfile)
    finally:
        worker.setup_broadcasts = set_up


def _read_int(file: BinaryIO) -> int:
    return int(_LENGTH.unpack(_read(file, _LENGTH.size))[0])


def _read(file: BinaryIO, size: int) -> bytes:
    """Read from an unbuffered file; end the worker if Spark has closed its socket."""
    parts: list[bytes] = []
    while size:
        part = file.read(size)
        if not part:
            sys.exit(-1)
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
