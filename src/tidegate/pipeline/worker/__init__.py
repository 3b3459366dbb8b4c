"""The worker: takes the pipeline files of a home, runs each as a Spark query, keeps their progress."""
