"""How the tables came to be: takes a connection, gives the newest tables, keeps the revision in the database.

`upgrade.py` runs the steps in `versions/`, all in the transaction of the caller: a killed upgrade leaves the
old tables, a finished one the new.
"""
