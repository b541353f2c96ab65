#!/usr/bin/env bash
# datasets 5.2.0: from_list and Dataset.from_generator drop a key that the first row does not have; a stream keeps
# it.
#
# The columns are those of the first row. Values under any other key are dropped without an error or a warning,
# whatever their number. IterableDataset.from_generator over the same generator gives them, so a program that
# turns from a dataset on disk to a stream trains on other columns.
#
# Seen, rows {"a": 1} and {"a": 2, "b": 3}: from_list and Dataset.from_generator have the column a alone;
# IterableDataset.from_generator gives {"a": 2, "b": 3}. With the rows in the other order from_list has None in b,
# and Dataset.from_generator raises DatasetGenerationError.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'datasets==5.2.0'
venv/bin/python - <<'PYTHON'
import datasets

rows = [{"a": 1}, {"a": 2, "b": 3}]

def generate(order):
    yield from (rows[i] for i in order)

listed = datasets.Dataset.from_list(rows)
generated = datasets.Dataset.from_generator(generate, gen_kwargs={"order": (0, 1)}, cache_dir="cache")
streamed = datasets.IterableDataset.from_generator(generate, gen_kwargs={"order": (0, 1)})
print(listed.column_names, generated.column_names, list(streamed))
assert listed.column_names == generated.column_names == ["a"], "the late key is kept: behaviour changed"
assert list(streamed) == rows
assert datasets.Dataset.from_list(rows[::-1])[:] == {"a": [2, 1], "b": [3, None]}
try:
    datasets.Dataset.from_generator(generate, gen_kwargs={"order": (1, 0)}, cache_dir="cache")
except datasets.exceptions.DatasetGenerationError as error:
    assert isinstance(error.__cause__, KeyError)
else:
    raise AssertionError("a key that a later row lacks is no error: behaviour changed")
PYTHON
