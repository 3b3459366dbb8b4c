"""Queries: takes statements with bound values, gives rows as Arrow or JSON, keeps only an open database.

`runner` plans statements. A SELECT passes through these steps, one module each: `duckdb.analysis` (one
SELECT, and nothing outside of the caller's tables), `scans.visible_tables` (what the caller may see),
`scans.pushdown` and `scans` (which files and rows can matter), `duckdb.views` (both as views of DuckDB) and
`duckdb.result`. `duckdb.engine` calls them in turn; `duckdb.session` is the locked-down DuckDB.
"""
