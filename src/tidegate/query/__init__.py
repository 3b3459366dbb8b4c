"""Queries: takes a SELECT with bound values, gives rows as Arrow or JSON, keeps nothing but an open database.

A statement passes through four steps, one module each: `statement` (one SELECT, and nothing that leads out
of the lake), `pruning` (which files can hold matching rows), `lake_scan` (the files as a DuckDB view) and
`answer`. `lake_sql` is the parent that calls them in turn; `database` is the locked-down DuckDB they run
in.
"""
