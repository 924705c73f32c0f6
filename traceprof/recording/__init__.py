"""From a training command to its reports: what this machine can record, and recording it."""
