"""Large data-parallel runs, made in columns: millions of kernels in seconds."""
