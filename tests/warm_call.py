"""Call the warm command line: `python warm_call.py SOCKET WORD…`. The command gets all that we were given.

Nothing of Tidegate is imported here, and as little else as can be: this is what a call costs.
"""

import json
import os
import signal
import socket
import sys

connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])


def pass_on(number: int, _frame: object) -> None:
    connection.send(bytes([number]))


for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(sent, pass_on)
asked = {"words": sys.argv[2:], "environ": dict(os.environ), "folder": os.getcwd()}  # noqa: PTH109 - quicker
text = json.dumps(asked).encode()
socket.send_fds(connection, [len(text).to_bytes(8, "big")], [0, 1, 2])
connection.sendall(text)
connection.recv(4)  # its number; we stand for it
told = connection.recv(4)
code = int.from_bytes(told, "big", signed=True) if told else 1
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
