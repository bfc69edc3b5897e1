"""The embedded engine: one commit log for all topics, segments of chunks behind it, LMDB for small state.

Invariant: what was acknowledged is on disk, and nothing else in this package needs the event loop
to wait for it.
"""
