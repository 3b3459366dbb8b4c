"""The catalog: takes changes of accounts, jobs and leases, returns them and an audit trail, keeps SQL tables.

SQLite in the home folder, or PostgreSQL for several servers; the same tables and the same calls on both.
All calls block and are safe from any thread. The entry point is `tidegate.catalog.database.Catalog`.
"""
