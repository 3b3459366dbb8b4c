"""SELECT on DuckDB: takes a statement and the tables that it may see, returns Arrow batches within limits."""
