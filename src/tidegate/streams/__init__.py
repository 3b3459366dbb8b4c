"""STREAM tables: takes rows of one user, returns those that are not expired, keeps them in log files.

    <root>/<namespace>/<table>/w<start_ms>-<duration_ms>/shard-<n>/<user>.log

A table's time is divided into windows whose size follows from its time to live (`windows`). A user has one
log per window (`shards` names it), a sequence of frames (`frames` is the format, `frame_reader` also finds
them after damage). `log_file` appends to one log and `writer_pool` bounds how many are open; `table_log` owns
the logs of one table, and `reader` merges the logs of one user. `trash` removes expired folders. `store` is
the entry point.
"""
