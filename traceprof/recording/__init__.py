"""Recording of training commands, and checks of what this machine can record."""
