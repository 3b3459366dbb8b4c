"""The log of a topic: takes messages, returns them by offset or time, keeps record batches in the engine.

protocol      the interface           record_batch  the format of stored messages
log           appends and trims       counters      the offsets and sizes of a partition
reader        reads without a group   time_index    searches by time and by size
"""
