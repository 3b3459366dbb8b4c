"""Local stores of a machine: takes the folder of a partition, returns its store, keeps it open.

One process holds a folder at a time; others of the machine use the store over a local socket.
"""
