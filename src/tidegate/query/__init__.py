"""Queries: takes statements with bound values, gives rows as Arrow or JSON, keeps only an open database.

A SELECT passes through these steps, one module each: `statement` (one SELECT, and nothing that leads out of
the caller's tables), `sources` (what the caller may see), `pruning`, `table_scan` and `stream_scan` (which
files and rows can matter), `lake_scan` and `lending` (both as views of DuckDB) and `answer`. `lake_sql` is
the parent that calls them in turn; `database` is the locked-down DuckDB they run in.
"""
