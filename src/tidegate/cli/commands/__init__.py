"""Commands, one module for each noun of `tidegate NOUN VERB`."""
