"""Keys of entries: key groups, the order of the bytes, and the hash by which Spark partitions rows."""
