"""What all wrappers are made with."""
