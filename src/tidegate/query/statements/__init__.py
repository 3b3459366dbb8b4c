"""Statements: takes one parsed statement and its caller, gives the step that runs it, keeps nothing.

One module for each kind of statement.
"""
