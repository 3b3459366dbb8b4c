"""Child processes that run statements and can be killed: takes the entry point of a child, gives sessions
with it, keeps warm children. It knows nothing of what the children do.
"""
