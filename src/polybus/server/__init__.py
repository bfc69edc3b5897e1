"""The node as a whole: configuration, assembly, running, draining, health.

Invariant: this is the only room that knows all the others; none of them imports it.
"""

from __future__ import annotations
