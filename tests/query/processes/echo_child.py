"""A child that does what it is told: it answers, sleeps, takes memory, or dies."""

from __future__ import annotations

import os
import socket
import time

from tidegate.query.processes.channel import Channel, ChannelClosed

ECHO, PID, SLEEP, HOG, ABORT, ENVIRONMENT, WAIT_INTERRUPT, FINISH = range(1, 9)


def preload() -> None:
    """There is nothing to load."""


def run_child(session: socket.socket, control: socket.socket) -> None:
    """Obey until the server is gone."""
    channel, interrupts = Channel(session), Channel(control)
    hog: list[bytearray] = []
    while True:
        try:
            frame = channel.receive()
        except ChannelClosed:
            return
        answer = bytes(frame.content)
        if frame.kind == PID:
            answer = str(os.getpid()).encode()
        elif frame.kind == SLEEP:
            time.sleep(float(frame.content))
        elif frame.kind == HOG:
            hog = [bytearray(b"x" * (1 << 20)) for _ in range(int(frame.content))]
            answer = str(len(hog)).encode()
        elif frame.kind == ABORT:
            os.abort()
        elif frame.kind == ENVIRONMENT:
            answer = "\n".join(os.environ).encode()
        elif frame.kind == WAIT_INTERRUPT:
            interrupts.receive()
        if frame.kind != FINISH:
            channel.send(frame.kind, answer)
