"""ttft: explains slow first tokens of local AI servers, from the kernel."""

__version__ = "0.1.0"
