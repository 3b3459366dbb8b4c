"""The execution of operators: takes the rows of one batch of one partition, gives output, keeps nothing."""
