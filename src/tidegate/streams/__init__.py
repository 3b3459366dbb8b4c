"""STREAM rows: takes rows of one user, gives back those that are still alive, keeps them in log files.

    <root>/<namespace>/<table>/w<start_ms>-<duration_ms>/shard-<n>/<user>.log

A table's time is cut into windows whose size follows from its time to live (`windows`). A user has one log in
a window (`users` names it), made of frames (`frames` is the format, `walking` finds them behind damage too).
`logs` appends to one log and `slots` bounds how many are open; `tables` owns what one table has open, and
`reading` merges the logs of one user. `trash` takes what is over out of sight. `store` is the way in.
"""
