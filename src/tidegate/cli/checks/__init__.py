"""What `tidegate doctor` looks at.

Takes the machine and a home as they are; gives findings: what was looked at, how it is, what was found and
the command that mends it. Keeps nothing and changes nothing. Every check is a function of what it is given,
works without a server, a home or Java, and raises nothing for what it finds wrong.
"""
