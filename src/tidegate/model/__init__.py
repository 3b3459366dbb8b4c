"""The nouns: takes text and numbers, gives frozen values that are valid by construction, keeps nothing.

Clocks (`clock`), ids (`ids`), times as numbers (`epoch`), as text (`times`), durations (`durations`),
half-open time ranges (`timeranges`), names (`names`), access (`access`), column types and schemas
(`schemas`), tables and their changes (`tables`, `changes`), values (`values`), and the structs of HTTP
answers (`wire`). Imports only `errors`; Arrow and NumPy load when needed.
"""
