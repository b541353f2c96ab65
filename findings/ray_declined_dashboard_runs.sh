#!/usr/bin/env bash
# Ray 2.60.0: ray.init(include_dashboard=False) starts the process of the dashboard all the same.
#
# The session has no dashboard_url and serves no page, but dashboard.py runs, without the modules of the page, and takes
# more than a second of CPU at each start. Where many short sessions start, as in tests, that is a good part of a start.
#
# Seen: one process of dashboard.py below a session whose dashboard was declined, and an empty dashboard_url.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q 'ray[default]==2.60.0' psutil
venv/bin/python - <<'PYTHON'
import psutil
import ray

context = ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
running = [process.cmdline() for process in psutil.Process().children(recursive=True)]
found = [words for words in running if any(word.endswith("/dashboard/dashboard.py") for word in words)]
print(f"dashboard_url is {context.dashboard_url!r}; {len(found)} process of dashboard.py of {len(running)} in all")
ray.shutdown()
assert not context.dashboard_url
assert len(found) == 1, "a declined dashboard has no process: behaviour changed"
PYTHON
