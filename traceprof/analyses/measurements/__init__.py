"""All that is measured of a run, and the registration of analyses."""
