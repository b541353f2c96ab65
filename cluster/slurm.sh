#!/usr/bin/env bash
# Train on a SLURM cluster, from this folder:
#   sbatch slurm.sh --checkpoint-dir /ckpt/flowers --num-actors 60
# What stands behind slurm.sh goes to job.py. The first part of the job has the accelerator, and the head of a Ray that
# lives as long as the job; the second part reads. Ended by its time limit, or by a fault that may pass, the job queues
# itself again and goes on from its newest checkpoint. `scancel --batch --signal=INT ID` ends it for good, with a step saved.
#SBATCH --job-name=datarax-ray
#SBATCH --partition=gpu
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=12
#SBATCH --gpus-per-node=1
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --signal=B:TERM@180
#SBATCH hetjob
#SBATCH --partition=cpu
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
set -euo pipefail

max_restarts=20 # a job that fails as often as this needs a person
comes_again=2 # the status of a job that would fail in the same way: wrong options, other data, a directory it cannot have

(($#)) || { echo "slurm.sh: no options for job.py; it needs at least --checkpoint-dir" >&2; exit 2; }
cd "${SLURM_SUBMIT_DIR:?is set by sbatch}" # SLURM runs a copy of this script, which job.py does not lie beside
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} # of the actors too: they find modules that source.py imports
[[ -f job.py && -f restarts.py ]] || { echo "slurm.sh: no job.py in $PWD; run sbatch in the folder that has it" >&2; exit 2; }

# Nodes are shared networks too: the token is in a file that only you can read, on the file system that all nodes see.
export RAY_AUTH_MODE=token
[[ -s $HOME/.ray/auth_token ]] || (umask 077 && ray get-auth-token --generate >/dev/null)

head_ip=$(hostname --ip-address)
head_ip=${head_ip%% *}
port=$((20000 + SLURM_JOB_ID % 10000)) # two jobs of one node do not meet
export RAY_ADDRESS=$head_ip:$port

trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
env -u RAY_ADDRESS ray start --head --block --node-ip-address="$head_ip" --port="$port" --dashboard-host=127.0.0.1 \
  --num-cpus="${SLURM_CPUS_ON_NODE:?is set by sbatch}" --labels role=trainer &
head=$!
# shellcheck disable=SC2016  # each node expands it for itself
srun --het-group=1 bash -c \
  'exec ray start --block --address="$RAY_ADDRESS" --num-cpus="$SLURM_CPUS_ON_NODE" --labels role=cpu' &

until ray status >/dev/null 2>&1; do # the head; readers join while the job runs
  kill -0 "$head" || { echo "slurm.sh: the head of Ray ended before the job began; see its lines above" >&2; exit 1; }
  sleep 1
done

signal=
trainer=
trap 'signal=TERM; kill -TERM "$trainer" 2>/dev/null || true' TERM # the time limit is near: save a step, queue again
trap 'signal=INT; kill -TERM "$trainer" 2>/dev/null || true' INT # somebody stops it; a shell's background is deaf to it
python restarts.py job.py --actor-label role=cpu "$@" &
trainer=$!
[[ -z $signal ]] || kill -TERM "$trainer" 2>/dev/null || true # it came in between
status=0
wait "$trainer" || status=$?
if [[ -n $signal ]]; then # the first wait ended with the signal, not with the trainer
  status=0
  wait "$trainer" || status=$?
fi

if [[ $signal != INT && ($signal == TERM || ($status != 0 && $status != "$comes_again")) ]]; then
  if ((${SLURM_RESTART_COUNT:-0} >= max_restarts)); then
    echo "slurm.sh: ended with status $status and was restarted $max_restarts times; not again" >&2
    exit 1
  fi
  echo "slurm.sh: ended with status $status${signal:+ after SIG$signal}; queued again" >&2
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
