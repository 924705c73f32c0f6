"""Sample traces with known answers, and the simulator that writes them."""
