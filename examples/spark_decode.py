"""Shows captured T2 values as JSON, and why some of them are none.

polybus serve &
python examples/spark_decode.py captured
"""

from __future__ import annotations

import os
import sys

import polybus.spark
from polybus.spark.functions import decode_t2

URL = os.environ.get("POLYBUS_URL", "polybus://127.0.0.1:15555")

spark = polybus.spark.session("decode")
records = spark.read.format("polybus").option("url", URL).option("topics", sys.argv[1]).load()
decoded = records.select("offset", decode_t2("payload").alias("d"))
decoded.select("offset", "d.json", "d.reason").show(truncate=False)
spark.stop()
