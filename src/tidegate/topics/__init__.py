"""Durable topics: takes messages, gives them back by partition and offset, keeps each in an ordered log.

A topic has partitions, which can be added and not taken away. A partition is a log of record batches; its
offsets are dense from 0 and are never given out twice. `batches` is the format of what is stored, `keys` says
where, `log` appends, reads and trims, `logs` is the interface that the rest uses.
"""
