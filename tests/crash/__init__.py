"""Crash loops: real processes, killed with -9 at seeded moments under load, compared with a journal outside.

journal    what was sent, acknowledged, killed and found, in one order, on disk
cluster    `tidegate up` on a home of its own: start, find its processes, kill one, wait until it is whole
nemesis    decides from a seed whom to kill next, and when
workload   what runs meanwhile and how it is checked afterwards; the first one: a topic and a pipeline
door       statements and requests over HTTP, each sent once, with its outcome told apart
tables     workload: rows of SHARED and USER tables
streams    workload: rows of STREAM tables
pulse      how long the server could work between two moments
routes     workload: tables that topics follow; a replay rebuilds them
groups     workload: producers, and members of a group who work, fail and die
ledger     what the members of a group know of each message
sink       workload: a pipeline from a topic to a topic
history    the smallest part of the journal that shows a fault
loop       one run: start, load, kill, drain, verify; `python -m tests.crash.loop --help`
"""
