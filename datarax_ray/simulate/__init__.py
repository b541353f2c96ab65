"""A simulation of pools of any size: the real scheduler, window, flow, load balance and lifecycle over made-up actors.

`datarax-ray simulate` is its command. Nothing here starts Ray, reads a file or waits.
"""
