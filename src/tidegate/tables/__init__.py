"""USER and SHARED tables: takes rows, gives them back by key, range and index, keeps them in the engine.

`definitions` has the tables of all kinds, streams too; `keys` and `key_codec` build the keys of rows;
`store` stages statements, `scan` reads, `counters` counts rows and bytes.
"""
