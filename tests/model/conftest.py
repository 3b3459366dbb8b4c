"""Property tests here are quick in sum; one example may be slow on a loaded machine, and that is no fault."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "model", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("model")
