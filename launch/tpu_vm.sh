#!/usr/bin/env bash
# Run bert_jax on a Cloud TPU slice, with the same program on every worker (host).
#
#   bash launch/tpu_vm.sh ACTION --name=NAME --zone=ZONE [--project=PROJECT] [--dry_run] ...
#
#   create   create the slice now: --type=TYPE [--spot] [--runtime=VERSION]
#   queue    request the slice, and wait for capacity: the same flags
#   status   show the state of the slice, or of the request with --queued
#   install  prepare all workers: [--repo=URL] [--commit=COMMIT], default this checkout's
#   run      run on all workers until it is done: [--max_restarts=10] -- PROGRAM ARGS...
#   logs     show what worker 0 prints, and follow it: [--worker=N]
#   stacks   make all workers print the stacks of their threads; the run goes on
#   stop     make all workers save and end; `run` with the same program continues
#   delete   delete the slice, or with --queued the request and its slice
#
# TYPE is gcloud's accelerator type, such as v4-128 or v6e-64. VERSION defaults to what
# Google's documentation recommends for JAX on that type. --dry_run prints the commands
# instead of running them.
set -euo pipefail
root=$(dirname "${BASH_SOURCE[0]}")/..
# shellcheck source=common.sh
source "$root/launch/common.sh"

action=${1-}
names="" switches="" # flags of the action, besides those of all actions
case $action in
  create | queue) names="type runtime" switches=spot ;;
  status | delete) switches=queued ;;
  install) names="repo commit" ;;
  run) names=max_restarts ;;
  logs) names=worker ;;
  stacks | stop) ;;
  --help) usage ;;
  "") fail "there is no action; --help lists them" ;;
  *) fail "unknown action '$action'; --help lists them" ;;
esac
shift

name="" zone="" project="" type="" runtime="" spot="" queued=""
repo="" commit="" worker=0 max_restarts=10
parse "name zone project $names" "$switches" "$@"
shift "$parsed"
required name "give the slice a name, --name=NAME"
required zone "give the zone of the slice, --zone=ZONE"
required_number max_restarts worker
[[ $action == run ]] || (($# == 0)) || fail "only run takes a program after --"
where=(--zone="$zone" ${project:+--project="$project"})
resource=tpu-vm
[[ -z $queued ]] || resource="queued-resources"

# on WORKER COMMAND: run a shell command on one worker, or on `all`.
on() {
  run gcloud compute tpus tpu-vm ssh "$name" "${where[@]}" --worker="$1" --command="$2"
}

case $action in
  create | queue)
    required type "give the accelerator type, such as --type=v4-128"
    if [[ -z $runtime ]]; then
      case $type in
        v2-* | v3-* | v4-*) runtime=tpu-ubuntu2204-base ;;
        v5litepod-*) runtime=v2-alpha-tpuv5-lite ;;
        v5p-*) runtime=v2-alpha-tpuv5 ;;
        v6e-*) runtime=v2-alpha-tpuv6e ;;
        *) fail "no runtime is known for $type; give it, --runtime=VERSION" ;;
      esac
    fi
    if [[ $action == create ]]; then
      run gcloud compute tpus tpu-vm create "$name" "${where[@]}" \
        --accelerator-type="$type" --version="$runtime" ${spot:+--spot}
    else
      run gcloud compute tpus queued-resources create "$name" "${where[@]}" \
        --node-id="$name" --accelerator-type="$type" --runtime-version="$runtime" \
        ${spot:+--spot}
    fi
    ;;
  status) run gcloud compute tpus "$resource" describe "$name" "${where[@]}" ;;
  install)
    branches='*'
    if [[ -z $repo ]]; then
      branches='origin/*'
      repo=$(git -C "$root" remote get-url origin 2>/dev/null) ||
        fail "this checkout has no remote 'origin'; give a repository, --repo=URL"
    fi
    if [[ -z $commit ]]; then
      commit=$(git -C "$root" rev-parse HEAD 2>/dev/null) ||
        fail "this is no checkout of git; give a commit, --commit=COMMIT"
      git -C "$root" diff --quiet HEAD &&
        [[ -z $(git -C "$root" status --porcelain -- bert_jax configs launch) ]] ||
        fail "this checkout has changes; commit and push them, or give --commit=COMMIT"
      [[ -n $(git -C "$root" branch --remotes --list "$branches" --contains "$commit") ]] ||
        fail "commit $commit is on no remote branch; push it, or give --commit=COMMIT"
    fi
    [[ $commit =~ ^[0-9a-f]{7,40}$ ]] ||
      fail "--commit takes the hash of a commit, not '$commit': a branch may move"
    on all "test -d bert_jax || git clone -- $(quoted "$repo") bert_jax && cd bert_jax \
&& git remote set-url origin $(quoted "$repo") && git fetch origin \
&& git checkout --detach $(quoted "$commit") && bash launch/setup_worker.sh"
    ;;
  run)
    (($#)) || fail "there is no program; give it after --"
    on all "cd bert_jax && PATH=\"\$PWD/.venv/bin:\$PATH\" bash launch/restart.sh --detach \
--log=\"\$HOME/bert_jax.log\" --max_restarts=$max_restarts -- $(quoted "$@")"
    ;;
  logs) on "$worker" "tail -n 100 -F bert_jax.log" ;;
  stacks) on all "bash bert_jax/launch/restart.sh --signal=USR1 --log=bert_jax.log" ;;
  stop) on all "bash bert_jax/launch/restart.sh --signal=TERM --log=bert_jax.log" ;;
  delete)
    run gcloud compute tpus "$resource" delete "$name" "${where[@]}" ${queued:+--force}
    ;;
esac
