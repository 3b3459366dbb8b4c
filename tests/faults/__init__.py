"""Faults: the same rows through keyed state, undisturbed and disturbed; output and state must be equal.

rows        what goes in, from a seed
operators   what works on it: one row by row with every kind of state and timers, one vectorised
strikes     what goes wrong, where and when; the part of it that happens inside a Python worker
plans       from a seed, which strikes a run suffers
driver      the process that is killed: a Spark driver with one query; `python -m tests.faults.driver`
damage      flipped bytes and lost folders, between two starts
reading     what came out, and how two of them differ
entries     the state, made anew from the checkpoint alone
volume      a small file system that can be filled
run         one run: start, strike, start again until the query is through; then compare
standin     a small operator without our state, careful or careless: proof that the comparison can fail
dedup_…     the same for a deduplication: its rows, its query, its stored times, and the model's answer
dedup_walk  a deduplication without Spark, killed and damaged at every step; `python -m` runs it
soak        hundreds of runs; `python -m tests.faults.soak [--operator dedup] --minutes 10`
"""
