"""A local socket between FLARE's processes and the tacit process that owns the data.

Guarantee: the socket is in a directory that only its owner can enter, so other users of the machine can neither
read nor answer. A frame is an 8-byte length and that many bytes; a frame that is too long is refused before it
is read.
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
"""The longest frame: a point of 10^8 float64 parameters fits."""

_PREFIX = "tacit-"
_CHUNK_BYTES = 2**20
_LENGTH = struct.Struct(">Q")


def send_frame(connection: socket.socket, frame: bytes) -> None:
    """Write one frame."""
    connection.sendall(_LENGTH.pack(len(frame)) + frame)


def receive_frame(connection: socket.socket) -> bytes:
    """Reads one frame; raises `EOFError` if the other side has closed the connection.

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
    # Read in chunks: a large claimed length alone must not cause an allocation.
    buffer = bytearray()
    while len(buffer) < length:
        part = connection.recv(min(length - len(buffer), _CHUNK_BYTES))
        if not part:
            raise EOFError("the other side of the relay has closed it")
        buffer += part
    return bytes(buffer)


@contextlib.contextmanager
def private_socket(home: Path | None = None) -> Iterator[tuple[socket.socket, Path]]:
    """A listening socket that only this user can reach, and its path; both are removed afterwards.

    The operating system limits paths to about 100 bytes, so the socket is in the directory for temporary files,
    wherever the run directory is. If this process is killed, the processes that hold a lifeline remove it. If
    they are killed too, the next socket of the same `home` removes it, using a note that is kept there.
    """
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
    if home is not None:
        _note_instead_of_the_last(home / ".relay", directory)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(directory / "relay"))
        listener.listen()
        yield listener, directory / "relay"
    finally:
        listener.close()
        shutil.rmtree(directory, ignore_errors=True)


def _note_instead_of_the_last(note: Path, directory: Path) -> None:
    """Notes where a socket is. The directory noted before is removed if nothing listens there any more."""
    last = Path(note.read_text()) if note.exists() else None
    note.write_text(str(directory))
    if last is None or not last.name.startswith(_PREFIX):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(last / "relay"))
        except OSError:
            shutil.rmtree(last, ignore_errors=True)


def connect_to_owner() -> socket.socket:
    """A connection from a FLARE process to the tacit process that started it."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(os.environ[SOCKET_VARIABLE])
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def answering(answer: Callable[[bytes], bytes], home: Path | None = None) -> Iterator[Path]:
    """Answer every frame that arrives with `answer(frame)`, one at a time, until the block is left.

    A broken connection affects no other: the engine opens a new one and asks again.
    """
    one_at_a_time = threading.Lock()

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(EOFError, OSError, MessageError):
            while True:
                frame = receive_frame(connection)
                with one_at_a_time:
                    reply = answer(frame)
                send_frame(connection, reply)

    with listening(serve, home) as path:
        yield path


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], None], home: Path | None = None) -> Iterator[Path]:
    """Runs `serve` for every connection in its own thread; all connections are closed afterwards.

    Closing them ends the processes that hold a lifeline.
    """
    connections: list[socket.socket] = []

    def accept(listener: socket.socket) -> None:
        # The block ends by shutting down the listener, which makes accept fail.
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connections[:] = [*(one for one in connections if one.fileno() >= 0), connection]
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with private_socket(home) as (listener, path):
        accepting = threading.Thread(target=accept, args=(listener,), daemon=True)
        accepting.start()
        try:
            yield path
        finally:
            _close(listener)
            # Also closes connections that were accepted at the last moment.
            accepting.join(1.0)
            for one in connections:
                _close(one)


def _close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
