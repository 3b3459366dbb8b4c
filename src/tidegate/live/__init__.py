"""Live subscriptions: takes what statements changed, gives it to everyone whose SELECT it matters to.

Keeps the newest changes of each table that is watched, within limits, and nothing for a subscriber but how
far it came: whoever reads slowly goes on from there, or is told that it lagged and begins anew.
"""
