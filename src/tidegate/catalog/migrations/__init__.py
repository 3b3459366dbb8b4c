"""Migrations of the catalog: takes a connection, creates the newest tables, keeps their revision.

`upgrade.py` runs the steps in `versions/`, all in the transaction of the caller: a killed upgrade leaves the
old tables, a finished one the new.
"""
