"""Readings of devices: clocks, memory, link, while a request waits and a server holds the device.

A process that has a device open keeps its driver's state loaded, and so hides the cold start that
it is to measure. Nothing here opens a device, and no library that does is loaded, unless a watched
process has the device open already and a request waits; soon after that it is let go again.
"""
