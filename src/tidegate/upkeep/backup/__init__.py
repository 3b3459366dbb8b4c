"""Backups: takes a running home, gives one file that holds all of it, and a home from such a file.

    delta_tables        a Delta table at one version, by hard links
    stream_logs         stream logs up to the length of one moment, by hard links
    spark_checkpoints   Spark's checkpoint of a pipeline, cut to a batch that fits the tables
    home_snapshot       the whole home at one point of time, in a folder beside it
    tar_format          the format of a backup file: headers, manifest, reader
    encryption          the format of an encrypted backup file, and of a key
    pack                a frozen home into one file
    restore             one file into a home
    coordinator         one backup at a time: lease, job, and the leftovers of killed processes

It keeps nothing but the frozen copy, for as long as it is packed.
"""
