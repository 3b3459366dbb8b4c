"""Upkeep: takes a home that runs, gives one file that holds all of it, and a home from such a file.

    tables        a Delta table at one version, by hard links
    streams       stream logs up to the length of one moment, by hard links
    checkpoints   Spark's checkpoint of a pipeline, cut to a batch that fits the tables
    freeze        the whole home at one point of time, in a folder beside it
    archive       the format of a backup file: writer and reader
    pack          a frozen home into one file
    restore       one file into a home
    desk          who makes a backup now: lease, job, and what is left of a dead maker

It keeps nothing but the frozen copy, for as long as it is packed.
"""
