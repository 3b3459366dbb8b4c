"""Delta tables: takes the folder of the lake, returns each table at its newest version.

It only reads, and keeps tables open, so that a new version costs one commit file.
"""
