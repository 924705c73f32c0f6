"""What links carried: NVLink, PCIe, InfiniBand."""
