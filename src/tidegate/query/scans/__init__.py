"""What a SELECT reads: takes its filters, returns the rows that may match.

The sources are tables, streams, the lake, and the tables of the system.
"""
