"""Arrow in and out of operators: takes record batches, returns events and rows, and back."""
