from __future__ import annotations

import subprocess
import sys

CODE = """
import resource
from polybus.server.malloc import tune_malloc
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(200):
        bytearray(262144)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
untuned = faults()
assert tune_malloc()
bytearray(262144)
print(untuned, faults())
"""


def test_large_blocks_cost_no_page_faults_once_tuned():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    untuned, tuned = map(int, done.stdout.split())
    assert tuned < untuned / 10
