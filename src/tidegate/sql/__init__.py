"""SQL: takes text, gives frozen statements and compiled expressions, keeps nothing.

`parser` reads what Tidegate itself runs: definitions, INSERT, UPDATE, DELETE, everything about topics, and
the frame of a SELECT. It does not know which tables there are. Expressions and the inside of a SELECT stay
text for DuckDB, but for those of live queries, which `expressions` compiles.
"""
