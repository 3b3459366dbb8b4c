"""Storage: takes write batches and files, returns them by key, range and version, keeps them durable.

The engine (`engine`, `rocksdb`, `memory`), group commit on top of it (`group_commit`), key codecs (`keys`),
the lake of Delta tables (`lake`) and the home folder that has all of them (`home`).
"""
