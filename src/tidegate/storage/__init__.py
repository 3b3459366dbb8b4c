"""Bytes at rest: takes batches and files, gives them back by key, range and version, keeps them safe.

The engine (`engine`, `rocks`, `memory`), group commit on top of it (`commit`), key codecs (`keys`), the
lake of Delta tables (`lake`) and the home folder that holds all of them (`home`).
"""
