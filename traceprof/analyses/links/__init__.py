"""Traffic on links: NVLink, PCIe, InfiniBand."""
