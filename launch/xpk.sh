#!/usr/bin/env bash
# Run bert_jax on a GKE cluster that was made with xpk (tested with the flags of xpk 1.16).
#
#   bash launch/xpk.sh --name=NAME --cluster=CLUSTER --type=TYPE --image=IMAGE \
#       [--FLAG=VALUE ...] -- PROGRAM ARGS...
#
#   --type=TYPE        xpk's TPU type, such as v6e-64
#   --image=IMAGE      a container image with this repository and its packages
#   --slices=1         number of slices of that type
#   --max_restarts=50  restarts after exit statuses other than 0 and 2, stops included
#   --project=PROJECT --zone=ZONE --spot
#   --dry_run          print the command instead of running it
#
# xpk sends telemetry to Google by default; this script switches it off. To switch it off
# for all uses of xpk: `xpk config set send-telemetry false`.
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

name="" cluster="" type="" image="" slices=1 max_restarts=50 project="" zone="" spot=""
parse "name cluster type image slices max_restarts project zone" spot "$@"
shift "$parsed"
required name "give the workload a name, --name=NAME"
required cluster "give the cluster, --cluster=CLUSTER"
required type "give the TPU type, such as --type=v6e-64"
required image "give a container image, --image=IMAGE"
required_number slices max_restarts
[[ $slices != 0 ]] || fail "--slices must be at least 1"
(($#)) || fail "there is no program; give it after --"

[[ $* != *$'\n'* ]] || fail "xpk takes no command of several lines"

# exec: xpk starts a shell for the command, and sends SIGTERM to that shell. $$: Kubernetes
# replaces $(NAME) in commands, and $$ by $. Exit statuses: by itself, xpk restarts only
# after 42 and after 127 and above. Containers: by default, xpk starts two on a host of
# TPU7x, with half of the chips each; here, as on other TPUs, one process has all.
command="exec $(quoted "$@")"
run env TELEMETRY_ENABLED=false xpk workload create \
  --workload="$name" --cluster="$cluster" ${project:+--project="$project"} \
  ${zone:+--zone="$zone"} --tpu-type="$type" --num-slices="$slices" ${spot:+--spot} \
  --docker-image="$image" --max-restarts="$max_restarts" \
  --restart-on-exit-codes=1,3-126 --termination-grace-period-seconds=120 \
  --no-use-parallel-containers \
  --command="${command//\$/\$\$}"
