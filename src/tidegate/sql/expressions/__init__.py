"""Expressions over one row: takes SQL text and a schema, gives compiled functions that agree with DuckDB.

They filter live queries and routes, on threads that cannot wait for DuckDB.
"""
