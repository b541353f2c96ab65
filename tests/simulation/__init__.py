"""A simulation of pools of any size: the real scheduler, window, flow, load balance and lifecycle over made-up actors.

`python -m tests.simulation` prints the figures of scenarios. Nothing here starts Ray, reads a file or waits.
"""
