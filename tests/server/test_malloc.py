from __future__ import annotations

import subprocess
import sys

CODE = """
import resource
from polybus.server.malloc import tune_malloc
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for size in [262144] * 100:
        # Several at a time: one alone would fit into what the C library keeps anyway.
        [b"x" * size for _ in range(8)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
untuned = faults()
assert tune_malloc()
faults()
print(untuned, faults())
"""


def test_large_blocks_cost_no_page_faults_once_tuned():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    untuned, tuned = map(int, done.stdout.split())
    assert tuned < untuned / 10
