"""Tasks of one shard run in one process, whichever worker gets them, and none is waited for."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidegate.spark.engine_processes import receive

from .workloads import kill

pytestmark = pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="there is no daemon without /proc"
)

#: A broker with engine processes that send their number, and then wait until the worker answers.
PROGRAM = textwrap.dedent(
    """
    import os, signal, socket, sys
    from tidegate.spark import engine_processes

    engine_processes.BUSY_SECONDS = 0.05
    engine_processes.IDLE_SECONDS = float(sys.argv[2])

    def serve(broker):
        while True:
            try:
                _, worker = engine_processes.receive(broker, 1)
            except EOFError:
                return
            with worker:
                worker.sendall(b"%10d" % os.getpid())
                if not worker.recv(1):
                    return
                broker.send(b"d")
                worker.sendall(b"e")

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    requests = socket.socket(fileno=int(sys.argv[1]))
    engine_processes.Broker(requests, serve).run(os.getppid())
    """
)


@contextmanager
def broker(idle: float = 60.0) -> Iterator[socket.socket]:
    """Run a broker in a process of its own; yield the socket for requests."""
    requests, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with requests:
        with its:
            command = [sys.executable, "-c", PROGRAM, str(its.fileno()), str(idle)]
            process = subprocess.Popen(command, pass_fds=[its.fileno()])
        try:
            yield requests
        finally:
            process.kill()
            process.wait()


class Task:
    """A task that runs in the engine process of a name, until it is ended or given up."""

    def __init__(self, requests: socket.socket, name: bytes) -> None:
        self.channel, its = socket.socketpair()
        with its:
            socket.send_fds(requests, [name], [its.fileno()])
        self.process = int(self.channel.recv(10))

    def end(self) -> int:
        """End the task, and return the number of its process."""
        self.channel.sendall(b"e")
        assert self.channel.recv(1) == b"e"
        self.channel.close()
        return self.process

    def give_up(self) -> None:
        self.channel.close()


def test_each_name_has_a_process_of_its_own() -> None:
    with broker() as requests:
        one, other = Task(requests, b"one"), Task(requests, b"other")
        assert one.process != other.process
        assert other.end() == Task(requests, b"other").end()
        assert one.end() == Task(requests, b"one").end()


def test_a_busy_process_is_not_waited_for() -> None:
    """The later process gets the next task: its engine is the one that the state belongs to."""
    with broker() as requests:
        hung, retry = Task(requests, b"a"), Task(requests, b"a")
        assert hung.process != retry.process
        retry.end()
        hung.end()
        assert Task(requests, b"a").end() == retry.process


@pytest.mark.parametrize("end", ["killed", "given up"])
def test_a_process_that_has_ended_is_replaced(end: str) -> None:
    with broker() as requests:
        task = Task(requests, b"a")
        if end == "killed":
            kill([task.process])
            assert task.channel.recv(1) == b""
        else:
            task.give_up()
        assert Task(requests, b"a").end() != task.process


def test_a_process_without_tasks_ends() -> None:
    with broker(idle=0.0) as requests:
        task = Task(requests, b"a")
        watched = os.pidfd_open(task.process)
        task.end()
        # A request makes the broker look for idle processes.
        Task(requests, b"b").end()
        ended = select.poll()
        ended.register(watched, select.POLLIN)
        assert ended.poll(10_000)
        os.close(watched)


def test_a_closed_channel_is_the_end_of_input() -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    other.close()
    with one, pytest.raises(EOFError):
        receive(one, 1)
