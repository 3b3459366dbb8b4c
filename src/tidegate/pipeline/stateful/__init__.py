"""Stateful operators on Spark: takes a DataFrame and an operator, gives the DataFrame of its output.

The driver checks and plans; each task runs one batch of one partition against the operator's checkpoint.
"""
