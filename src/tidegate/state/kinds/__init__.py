"""The kinds of state that an operator declares: value, list, map, reducing, aggregating, operator list."""
