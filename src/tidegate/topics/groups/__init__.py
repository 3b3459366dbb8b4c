"""Consumer groups: takes fetches and acknowledgements, returns leased messages, keeps positions."""
