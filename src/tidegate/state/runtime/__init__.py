"""A running operator: takes the rows of one batch of one partition, returns output, stages changes."""
