"""`ttft report`: one self-contained page about a time, to keep or to send."""

from tracer.report.page import Data, page, worst

__all__ = ["Data", "page", "worst"]
