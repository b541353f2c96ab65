"""How do I leave out records that I do not want, and those that are broken? By a filter, and by on_error="skip".

What a filter drops is meant, and silent. What is broken is counted, logged and listed, with a bound on how many.
"""

import json
import tempfile
from pathlib import Path

from array_record.python.array_record_module import ArrayRecordWriter

from datarax_ray import ArrayRecordSourceConfig, ArrayRecordSourceModule, DecodeJson, Pipeline


class LongEnough:
    def filter(self, element):
        return len(element["text"]) >= 3


with tempfile.TemporaryDirectory() as directory:
    path = str(Path(directory) / "data.array_record")
    writer = ArrayRecordWriter(path, "group_size:1")
    for record in (
        b'{"text": "one"}',
        b'{"text": "x"}',
        b'{"text": ',
        b'{"text": "four"}',
        b"\xff",
        b'{"text": "five"}',
    ):
        writer.write(record)
    writer.close()

    listed = Path(directory) / "skipped.jsonl"
    config = ArrayRecordSourceConfig(num_epochs=1, on_error="skip", max_skipped=10, skipped_path=str(listed))
    source = ArrayRecordSourceModule(config, path, transforms=[DecodeJson(), LongEnough()])
    with Pipeline(source=source, batch_size=2) as pipeline:
        texts = [text for batch in pipeline for text in batch["text"]]
        print(texts, "and", pipeline.num_skipped, "broken ones left out:")

    skipped = [json.loads(line) for line in listed.read_text().splitlines()]
    for skip in skipped:
        print(f"  {Path(skip['file']).name}[{skip['record']}]: {skip['reason'][:60]} ...")

assert texts == ["one", "four", "five"]
assert [skip["record"] for skip in skipped] == [2, 4]
