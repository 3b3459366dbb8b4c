"""The console view: takes status answers, gives a picture of the system on a terminal, keeps two minutes."""
