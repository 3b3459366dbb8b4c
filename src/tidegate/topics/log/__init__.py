"""The log of a topic: takes messages, returns them by offset or time, keeps record batches in the engine."""
