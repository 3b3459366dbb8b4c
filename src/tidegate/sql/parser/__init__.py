"""The parser: takes SQL text, returns the statements of `sql/statements.py`."""
