"""Live subscriptions: takes what statements changed, gives it to everyone whose SELECT it matters to.

Keeps the newest changes of each table that is watched, within limits, and nothing for a subscriber but its
position: a slow reader continues from there, or gets the message that it lagged and a new snapshot.
"""
