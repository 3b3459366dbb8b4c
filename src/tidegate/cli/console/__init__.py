"""The live view of `tidegate up` on a terminal."""
