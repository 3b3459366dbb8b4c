"""Consumer groups: takes fetches and acknowledgements, returns leased messages, keeps positions.

groups    what members do        ledger        who holds which messages of one partition
describe  lag, members, counters leases        what one request changes in a ledger, and lease ids
members   activity of members    dead_letters  messages whose deliveries are exhausted
store     groups in memory, in step with the engine
codec     keys and bytes         types         requests, results and limits
"""
