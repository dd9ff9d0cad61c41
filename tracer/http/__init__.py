"""TCP segments to HTTP facts: the one place that sees payload, and drops it."""

from tracer.http.endpoints import Endpoint, find, is_inference, kind_of
from tracer.http.reader import HttpReader
from tracer.http.reassembly import ACK, FIN, RST, SYN, Packet

__all__ = [
    "ACK",
    "FIN",
    "RST",
    "SYN",
    "Endpoint",
    "HttpReader",
    "Packet",
    "find",
    "is_inference",
    "kind_of",
]
