"""The pipelines: short PySpark programs, each with pure functions from frames to frames and a thin runner.

Invariant: what decides is in the functions, which tests call with small frames; a runner only reads, calls and writes.
"""
