"""The command line: takes arguments, gives tables for people or JSON for machines, keeps nothing.

    commands      one module for each noun (`topic`, `pipeline`, `sql`, `status`, `serve`, `worker`, `up` …)
    invocation    what every command shares: --home, --json, --tenant, the client, the answer
    hints         errors with what to type next
    output        values as text, tables, errors
    checks        the checks of `tidegate doctor`
    console       the live view of `up` and `status --watch`
    supervision   the child processes of `up`
    demo          the demo of `up --demo`

Heavy modules are imported inside the commands, so that `tidegate --help` is quick.
"""
