"""The command line: takes words and lines, gives tables for people or JSON for machines, keeps nothing.

One file per noun (`topic`, `pipeline`, `sql`, `status`, `serve`, `worker`, `up`). `invocation` is what every
command shares, `show` turns values into text, `view` draws the console view, `supervisor` keeps the children
of `up` alive, `advice` fits hints to the command line. Heavy modules are imported inside the commands, so
that `tidegate --help` is quick.
"""
