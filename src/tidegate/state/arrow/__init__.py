"""Arrow and operators: takes record batches, gives events; takes rows of output, gives record batches."""
