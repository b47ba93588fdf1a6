#!/usr/bin/env bash
# Make a TPU VM ready to run this checkout; `tpu_vm.sh install` runs it on every worker.
#
#   bash launch/setup_worker.sh [--extra=tpu,gcs] [--dry_run]
#
# It makes an environment with Python 3.11 in .venv, installs this package with those
# extras and the versions of constraints.txt, and switches transparent hugepages on.
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

extra=tpu,gcs
parse extra "" "$@"
shift "$parsed"
(($# == 0)) || unknown "$1"
[[ -f constraints.txt ]] || fail "there is no constraints.txt; run this in the root of the repository"

# JAX asks for hugepages on v5e and later, where the runtime then starts faster.
run sudo sh -c 'echo always > /sys/kernel/mm/transparent_hugepage/enabled'

if [[ ! -x .venv/bin/pip ]]; then
  if command -v python3.11 >/dev/null; then
    run python3.11 -m venv .venv
  else
    # Ubuntu 22.04 has Python 3.10; uv installs 3.11 without root. `--clear` replaces
    # an environment whose creation was interrupted.
    run python3 -m pip install --user uv
    run python3 -m uv venv --clear --python=3.11 --seed .venv
  fi
fi
run .venv/bin/pip install --editable ".[$extra]" --constraint constraints.txt
