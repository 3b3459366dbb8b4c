"""The write path: takes requests to store, gives their places, keeps nothing.

A holder turns what it is given into puts; this package decides which holders take part and commits all of
their puts at once.
"""
