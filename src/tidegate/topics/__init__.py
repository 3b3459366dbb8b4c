"""Durable topics: takes messages, returns them by partition and offset, keeps each in an ordered log.

A topic has partitions, which can be added and not removed. A partition is a log of record batches; its
offsets are dense from 0 and are never used twice. `log.record_batch` is the format of what is stored, `keys`
says where, `log.log` appends, reads and trims, `log.protocol` is the interface that other packages use.
"""
