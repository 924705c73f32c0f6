"""Steps of a rank: ranges that mark them, and their windows on the GPU."""
