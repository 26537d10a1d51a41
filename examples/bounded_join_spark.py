"""Join two streams on Spark within a budget, and count the results by window of time.

Bids come up to ten minutes late. The watermarks on the inputs tell the join and the aggregation
how long to wait.

It ends with the line

    held at most 150 of the allowed 150 rows in 4 batches
"""

from __future__ import annotations

import tempfile

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import tidegate as tg
from tidegate.spark.metrics import observed
from tidegate.spark.session import session
from tidegate.streams import auctions, write_parquet_batches


def main() -> None:
    """Run the example."""
    home = tempfile.mkdtemp()
    opened, offered = auctions(1_000, bids=4.0, seed=1)
    span = (opened["ts"][0], offered["ts"][-1])
    for name, table in (("auctions", opened), ("bids", offered)):
        write_parquet_batches(table, f"{home}/{name}", time="ts", batches=4, span=span)
    spark = session()  # or your own SparkSession

    def stream(name: str) -> DataFrame:
        schema = spark.read.parquet(f"{home}/{name}").schema
        files = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return files.parquet(f"{home}/{name}").withWatermark("ts", "10 minutes")

    matches = tg.join(
        stream("auctions"),
        stream("bids"),
        on="auction_id",
        time="ts",
        within=("2 hours", 0),
        closed=True,
        memory=150,
    )
    hourly = matches.groupBy(F.window("ts_right", "1 hour")).agg(F.max("price").alias("highest"))
    query = (
        hourly.writeStream.format("memory")
        .queryName("hourly")
        .option("checkpointLocation", f"{home}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.table("hourly").orderBy("window").show(3, truncate=False)

    held = [row["held"] for p in query.recentProgress for row in observed(p).values()]
    print(f"held at most {max(held)} of the allowed 150 rows in {len(held)} batches")


if __name__ == "__main__":
    main()
