"""Counts words of a topic with Spark, and writes the counts back to the bus, each batch once.

polybus serve &
printf 'to be or\nnot to be\n' | polybus pub lines --topic --create
python examples/spark_words.py
"""

from __future__ import annotations

import os

from pyspark.sql import functions as F

import polybus.spark

URL = os.environ.get("POLYBUS_URL", "polybus://127.0.0.1:15555")

spark = polybus.spark.session("words")
lines = spark.read.format("polybus").option("url", URL).option("topics", "lines").load()
words = lines.select(F.explode(F.split(F.col("payload").cast("string"), r"\s+")).alias("word"))
counts = words.groupBy("word").count().orderBy(F.desc("count"), "word")
counts.show()

records = counts.select(F.col("word").alias("key"), F.to_json(F.struct("*")).alias("payload"))
records.write.format("polybus").option("url", URL).option("topic", "words").mode("append").save()
spark.stop()
