"""Statements: takes one parsed statement and its caller, returns what to write or read.

One module for each kind of statement.
"""
