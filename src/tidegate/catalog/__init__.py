"""The catalog: takes who and what, gives people, tokens, audit events, leases and jobs, keeps them in SQL.

SQLite in the home folder, or PostgreSQL for several servers; the same tables and the same calls on both.
Everything here blocks and is safe from any thread. The way in is `tidegate.catalog.database.Catalog`.
"""
