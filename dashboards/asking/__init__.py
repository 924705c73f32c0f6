"""What takes its time to answer: asked by pages, answered beside them, so that no page waits."""
