"""A local socket between FLARE's processes and the process of tacit that owns what they carry.

Guarantee: the socket lies in a directory that only its owner can enter, so other users of the machine can
neither read nor answer. Frames are an 8-byte length and that many bytes; a longer one than agreed is refused
before it is read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tacit.errors import MessageError

SOCKET_VARIABLE = "TACIT_RELAY_SOCKET"
"""The environment variable by which FLARE's processes learn where their owner listens."""

FRAME_LIMIT_BYTES = 2**30
"""No frame is longer: a point of 10^8 float64 parameters still fits."""

_LENGTH = struct.Struct(">Q")


def send_frame(connection: socket.socket, frame: bytes) -> None:
    """Write one frame."""
    connection.sendall(_LENGTH.pack(len(frame)) + frame)


def receive_frame(connection: socket.socket) -> bytes:
    """Read one frame; `EOFError` where the other side has gone.

    >>> left, right = socket.socketpair()
    >>> send_frame(left, b"point"); receive_frame(right)
    b'point'
    >>> left.close(); right.close()
    """
    (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size))
    if length > FRAME_LIMIT_BYTES:
        raise MessageError(f"a frame of {length} bytes is longer than the limit of {FRAME_LIMIT_BYTES}")
    return _receive(connection, length)


def _receive(connection: socket.socket, length: int) -> bytes:
    buffer = bytearray(length)
    view, done = memoryview(buffer), 0
    while done < length:
        count = connection.recv_into(view[done:])
        if count == 0:
            raise EOFError("the other side of the relay has closed it")
        done += count
    return bytes(buffer)


@contextlib.contextmanager
def private_socket() -> Iterator[tuple[socket.socket, Path]]:
    """A listening socket that only this user can reach, and its path; both are gone afterwards.

    The path is short wherever the run directory lies: the operating system allows about 100 bytes.
    """
    directory = Path(tempfile.mkdtemp(prefix="tacit-"))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(directory / "relay"))
        listener.listen()
        yield listener, directory / "relay"
    finally:
        listener.close()
        shutil.rmtree(directory, ignore_errors=True)


def connect_to_owner() -> socket.socket:
    """A connection from one of FLARE's processes to the process of tacit that started it."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(os.environ[SOCKET_VARIABLE])
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def answering(answer: Callable[[bytes], bytes]) -> Iterator[Path]:
    """Answer every frame that arrives with `answer(frame)`, one at a time, until the block is left.

    A connection that breaks off harms nobody else: the engine asks again on a new one.
    """
    one_at_a_time = threading.Lock()

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(EOFError, OSError, MessageError):
            while True:
                frame = receive_frame(connection)
                with one_at_a_time:
                    reply = answer(frame)
                send_frame(connection, reply)

    with listening(serve) as path:
        yield path


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[Path]:
    """Hand every connection to `serve` in a thread of its own; afterwards all of them are closed.

    Closing them is what ends the processes that hold a lifeline.
    """
    connections: list[socket.socket] = []

    def accept(listener: socket.socket) -> None:
        # Shutting the listener down, which is how the block ends, makes accept fail.
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connections[:] = [*(one for one in connections if one.fileno() >= 0), connection]
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with private_socket() as (listener, path):
        accepting = threading.Thread(target=accept, args=(listener,), daemon=True)
        accepting.start()
        try:
            yield path
        finally:
            _close(listener)
            # Whoever was let in at the last moment is closed as well.
            accepting.join(1.0)
            for one in connections:
                _close(one)


def _close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
