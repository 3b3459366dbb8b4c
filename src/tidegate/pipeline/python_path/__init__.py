"""A folder on the PYTHONPATH of Spark's Python workers; takes and keeps nothing."""
