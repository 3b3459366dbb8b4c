"""The write path: takes rows and messages, returns what was stored, keeps nothing.

Tables, streams and topics stage their own puts; this package decides which of them take part in a change, and
commits all of their puts in one write batch.
"""
