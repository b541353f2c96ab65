#!/usr/bin/env bash
# Hand job.py to a running Ray cluster with `ray job submit`. Nothing here reads, prints or forwards a token:
# the ray command takes it from where Ray looks, and the job inherits that of the head node it runs on.
set -euo pipefail

usage() {
  cat <<'USAGE'
usage: submit.sh [options] [--] JOB_OPTIONS...

Submits job.py and shows its output until it ends. JOB_OPTIONS go to job.py (`submit.sh -- --help` is answered by it).
Submitted again with the same --checkpoint-dir, the job goes on from its newest checkpoint.

  --address URL         of the job server (RAY_API_SERVER_ADDRESS, else http://127.0.0.1:8265)
  --no-wait             return once the job is submitted; see it with `ray job logs ID`, end it with `ray job stop ID`
  --submission-id ID    name the job, instead of a random name
  --num-gpus N          GPUs that the driver (the trainer) reserves
  --python PATH         interpreter on the cluster that has datarax_ray (python)
  --env NAME            pass this variable of yours to the job; may be repeated (JAX_PLATFORMS, XLA_FLAGS always are)
  --max-restarts N      how often a job that fails is run again, from its newest checkpoint (5)
  --stop-wait SECONDS   what a stopped job gets to save its checkpoint before it is killed (60; Ray's own is 3)
  --insecure            for a cluster without token authentication: whoever reaches its ports runs code on it
  -h, --help            this text

The token is looked for where Ray does: RAY_AUTH_TOKEN (the token), else RAY_AUTH_TOKEN_PATH (a file that holds it),
else ~/.ray/auth_token. `ray get-auth-token --generate` makes one; every node and every client needs the same.
USAGE
}

die() {
  echo "submit.sh: $*" >&2
  exit 2
}

# Where the token is, never what it is.
token_place() {
  local file=${RAY_AUTH_TOKEN_PATH:-${HOME:-}/.ray/auth_token}
  if [[ -n ${RAY_AUTH_TOKEN:-} ]]; then
    echo "RAY_AUTH_TOKEN"
  elif [[ -s $file && -r $file ]]; then
    echo "$file"
  else
    die "no token: RAY_AUTH_TOKEN is not set, and $file is missing, empty or not readable. The cluster would refuse" \
      "the job. Copy the head node's token to that file (on the head: ray get-auth-token), or pass --insecure if the" \
      "cluster has no authentication."
  fi
}

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
address=${RAY_API_SERVER_ADDRESS:-http://127.0.0.1:8265}
python=python
stop_wait_s=60
max_restarts=5
is_insecure=false
names=(JAX_PLATFORMS XLA_FLAGS)
ray_options=()

while (($#)); do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --no-wait) ray_options+=(--no-wait); shift ;;
    --insecure) is_insecure=true; shift ;;
    --address | --submission-id | --num-gpus | --python | --env | --stop-wait | --max-restarts)
      (($# > 1)) || die "$1 needs a value; see submit.sh --help"
      case $1 in
        --address) address=$2 ;;
        --submission-id) ray_options+=(--submission-id "$2") ;;
        --num-gpus) ray_options+=(--entrypoint-num-gpus "$2") ;;
        --python) python=$2 ;;
        --env) names+=("$2") ;;
        --stop-wait) stop_wait_s=$2 ;;
        --max-restarts) max_restarts=$2 ;;
      esac
      shift 2
      ;;
    --) shift; break ;;
    *) break ;;
  esac
done

(($#)) || { usage >&2; die "no options for job.py; it needs at least --checkpoint-dir"; }
[[ $stop_wait_s =~ ^[0-9]+$ ]] || die "--stop-wait is a whole number of seconds, got '$stop_wait_s'"
[[ $max_restarts =~ ^[0-9]+$ ]] || die "--max-restarts is a whole number, got '$max_restarts'"
command -v ray >/dev/null || die "there is no ray command on PATH; activate the environment that has datarax-ray"
for name in "${names[@]}"; do
  # A runtime_env is kept by the cluster and shown on its dashboard.
  [[ $name != RAY_AUTH_* ]] || die "--env $name would put the token into the job's records; the job does not need it"
done

if $is_insecure; then
  export RAY_AUTH_MODE=disabled
else
  export RAY_AUTH_MODE=token
  place=$(token_place)
  echo "submitting to $address with the token of $place" >&2
  case $address in
    https://* | http://127.* | http://localhost* | http://\[::1\]*) ;;
    *) echo "submit.sh: warning: the token travels to $address unencrypted; use https or an SSH tunnel" >&2 ;;
  esac
fi

# Python, because values may hold quotes and newlines. RAY_JOB_STOP_WAIT_TIME_S is read by the job's supervisor, which
# runs in this environment too: Ray kills a job 3 s after SIGTERM otherwise, which is short for a large checkpoint.
runtime_env=$(python3 - "$stop_wait_s" "${names[@]}" <<'PYTHON'
import json, os, sys
env_vars = {name: os.environ[name] for name in sys.argv[2:] if name in os.environ}
env_vars |= {"PYTHONUNBUFFERED": "1", "RAY_JOB_STOP_WAIT_TIME_S": sys.argv[1]}
print(json.dumps({"env_vars": env_vars}))
PYTHON
)

# exec: the job is then the process that `ray job stop` signals, with no shell in between.
exec ray job submit --address "$address" --working-dir "$here" --runtime-env-json "$runtime_env" \
  ${ray_options[@]+"${ray_options[@]}"} -- exec "$python" restarts.py --max-restarts "$max_restarts" job.py "$@"
