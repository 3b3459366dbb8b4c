"""The worker: takes pipeline files of a home, runs each as a Spark query, reports how far it is."""
