"""USER and SHARED tables: takes rows, gives them back by key, range and index, keeps them in the engine.

`definitions` says which tables there are, those of streams too; `keys` and `key_codec` say where a row lies;
`store` stages statements and `scanning` reads; `counters` knows how much a table holds.
"""
