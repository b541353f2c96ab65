"""How do I read files in a bucket? By their URLs: s3://, gs://, abfss:// or https://, with load or any source.

Here memory:// stands for the bucket, so that this runs anywhere; on S3 it is load("s3://bucket/train/*.parquet", ...).
Actors read only what their rows need. Every actor's host needs the credentials, as pyarrow or fsspec find them there:
environment variables, a role, ~/.aws; or give the source filesystem=fsspec.filesystem("s3", endpoint_url=...).
"""

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datarax_ray import Pipeline, load

bucket = fsspec.filesystem("memory")
for number in range(3):
    rows = np.arange(100) + 100 * number
    with bucket.open(f"/bucket/train/part-{number}.parquet", "wb") as file:
        pq.write_table(pa.table({"x": rows, "square": rows**2}), file, row_group_size=20)

with Pipeline(source=load("memory://bucket/train/*.parquet", shuffle=True, seed=1), batch_size=64) as pipeline:
    seen = []
    for batch in pipeline:
        assert (batch["square"] == batch["x"] ** 2).all()
        seen += batch["x"].tolist()
    print(f"{len(seen)} rows, the first of them {seen[:5]}")
    stats = pipeline.stats()
print(f"reading took {sum(stats.reading.values()):.2f} s")

assert seen != sorted(seen)
assert sorted(seen) == list(range(300))
