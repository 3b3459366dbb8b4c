"""The nouns: takes text and numbers, gives frozen values that are right by construction, keeps nothing.

Clocks (`clock`), ids (`ids`), durations (`durations`), half-open time ranges (`timeranges`), names (`names`),
column types and schemas (`schemas`). Imports nothing of ours but `errors`; Arrow and NumPy load when needed.
"""
