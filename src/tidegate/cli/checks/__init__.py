"""The checks of `tidegate doctor`.

Takes the machine and a home as they are; gives findings: what was checked, its state, what was found and the
command that fixes it. Keeps nothing and changes nothing. Every check is a function of its arguments, works
without a server, a home or Java, and raises nothing for what it finds wrong.
"""
