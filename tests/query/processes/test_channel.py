"""Frames between two processes: whole, in order, with their descriptors."""

from __future__ import annotations

import os
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.query.processes.channel import SOCKET_BYTES, Channel, ChannelClosed


def pair() -> tuple[Channel, Channel]:
    one, other = socket.socketpair()
    return Channel(one), Channel(other)


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=300), st.booleans()), max_size=8))
def test_frames_arrive_whole_and_in_order_with_their_descriptors(
    frames: list[tuple[int, bytes, bool]],
) -> None:
    sender, receiver = pair()
    inodes = []
    for kind, content, has_fd in frames:
        fd = os.memfd_create("frame") if has_fd else None
        sender.send(kind, content, fd)
        inodes.append(None if fd is None else os.fstat(fd).st_ino)
        if fd is not None:
            os.close(fd)
    for (kind, content, _), inode in zip(frames, inodes, strict=True):
        frame = receiver.receive()
        assert (frame.kind, bytes(frame.content)) == (kind, content)
        assert (frame.fd is None) == (inode is None)
        if frame.fd is not None:
            assert os.fstat(frame.fd).st_ino == inode
            os.close(frame.fd)
    sender.close()
    receiver.close()


def test_a_frame_that_no_buffer_holds_waits_for_its_reader() -> None:
    sender, receiver = pair()
    content = os.urandom(SOCKET_BYTES * 4 + 17)

    def send() -> None:
        sender.send(7, content)
        sender.send(8, b"")

    thread = threading.Thread(target=send)
    thread.start()
    assert bytes(receiver.receive().content) == content
    assert receiver.receive().kind == 8
    thread.join()


@pytest.mark.parametrize("sent", [b"", b"\x05", b"\x05\0\0\0\x01ab"])
def test_an_end_that_is_gone_is_said_to_be(sent: bytes) -> None:
    one, other = socket.socketpair()
    one.sendall(sent)
    one.close()
    receiver = Channel(other)
    with pytest.raises(ChannelClosed):
        receiver.receive()
    with pytest.raises(ChannelClosed):
        for _ in range(3):
            receiver.send(1, b"x" * 100_000)


def test_a_length_that_cannot_be_is_refused() -> None:
    one, other = socket.socketpair()
    one.sendall(b"\xff\xff\xff\xff\x01")
    with pytest.raises(ChannelClosed):
        Channel(other).receive()
