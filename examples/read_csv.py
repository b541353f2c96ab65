"""How do I read CSV files, with a header, missing values and text? With CSVSource; load() finds the delimiter.

Numbers go to the device; text and dates stay on the host. A row that does not fit is an error that names its file and
place, or is left out with on_error="skip".
"""

import tempfile
from pathlib import Path

from datarax_ray import CSVSource, CSVSourceConfig, Pipeline, load

ROWS = """\
city;day;visitors;rain_mm
Aarhus;2026-05-01;120;0.5
Bergen;2026-05-01;80;
Cork;2026-05-02;95;4.0
"""

with tempfile.TemporaryDirectory() as directory:
    (Path(directory) / "visits.csv").write_text(ROWS)

    config = CSVSourceConfig(delimiter=";", column_types={"visitors": "int32"}, on_null={"rain_mm": 0.0}, num_epochs=1)
    with Pipeline(source=CSVSource(config, directory), batch_size=3) as pipeline:
        batch = next(iter(pipeline))
    for name, column in batch.items():
        print(f"{name}: {type(column).__module__.partition('.')[0]}, {column.dtype}, {column.tolist()}")

    shuffled = load(directory, shuffle=True, seed=3).get_batch(3)

assert batch["visitors"].tolist() == [120, 80, 95]
assert batch["rain_mm"].tolist() == [0.5, 0.0, 4.0]
assert batch["city"].tolist() == ["Aarhus", "Bergen", "Cork"]
assert sorted(shuffled["city"].tolist()) == ["Aarhus", "Bergen", "Cork"]
