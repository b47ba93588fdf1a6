#!/usr/bin/env bash
# Run a command, and run it again until it is done; or send a signal to such a run.
#
#   bash launch/restart.sh [--FLAG=VALUE ...] -- COMMAND ARGS...
#   bash launch/restart.sh --signal=TERM --log=FILE
#
# What the command's exit status means:
#   0      done
#   2      an error that a restart would repeat, such as a missing file: not repeated
#   75     it was asked to stop, and saved: repeated
#   other  a crash: repeated, a limited number of times
#
# SIGUSR1 is passed on to the command. At SIGTERM or SIGINT it gets SIGTERM, and the loop ends.
# Every worker of a run has its own loop. The loops need not communicate: when one
# process dies, the others fail too, and all of them start again.
#
#   --max_restarts=10      restarts after crashes in a row, at most
#   --steady_seconds=3600  a crash after so many seconds starts a new count
#   --pause=30             seconds before the command is started again
#   --return_75            exit with 75 instead of repeating, for a scheduler that does
#   --detach --log=FILE    run in the background; one run at a time for each FILE
#   --signal=NAME          send a signal to the run that was detached with this FILE
#   --dry_run              print the command instead of running it
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

max_restarts=10
steady_seconds=3600
pause=30
return_75=""
detach=""
log=""
signal=""
parse "max_restarts steady_seconds pause log signal" "return_75 detach" "$@"
shift "$parsed"
required_number max_restarts steady_seconds pause
[[ -z $log || -n $detach$signal ]] || fail "--log goes with --detach or --signal"
[[ -z $signal ]] || (($# == 0)) || fail "--signal takes no command"
[[ -z $log || -d $(dirname -- "$log") ]] || fail "there is no folder for --log=$log"
[[ ! -d $log ]] || fail "--log=$log is a folder; give a file"

# All processes of a detached run, its children included, hold FILE.lock open and locked.
# So the lock shows whether any of them still runs, even after the loop was killed.
if [[ -n $signal ]]; then
  required log "give the file that the run was detached with, --log=FILE"
  if flock --nonblock "$log.lock" true; then
    echo "nothing runs"
  else
    run kill -s "$signal" "$(cat "$log.pid")"
  fi
  exit
fi

(($#)) || fail "there is no command; give it after --"

if [[ -n $detach ]]; then
  required log "give a file for what the command prints, --log=FILE"
  again=(setsid "$BASH" "$0" --max_restarts="$max_restarts"
    --steady_seconds="$steady_seconds" --pause="$pause"
    ${return_75:+--return_75} -- "$@")
  if [[ -n $dry_run ]]; then
    printf '%s >>%q 2>&1 </dev/null &\n' "$(quoted "${again[@]}")" "$log"
    exit
  fi
  exec 9>>"$log.lock"
  flock --nonblock 9 || fail "the run of $log is still going on; stop it first"
  "${again[@]}" >>"$log" 2>&1 </dev/null &
  echo $! >"$log.pid"
  exit
fi

if [[ -n $dry_run ]]; then
  quoted "$@"
  exit
fi

say() {
  printf '%(%F %T)T restart.sh: %s\n' -1 "$*" >&2
}

child=""
stopping=""
interrupted=""
pass_on() {
  interrupted=1
  [[ -z $child ]] || kill -s "$1" "$child" 2>/dev/null || true
}
trap 'stopping=1; pass_on TERM' TERM INT
trap 'pass_on USR1' USR1

# Return the status of the child. `wait` returns early when a signal arrives; called
# again, it returns the status.
wait_for_child() {
  local status
  while true; do
    interrupted=""
    status=0
    wait "$child" || status=$?
    [[ -n $interrupted ]] || break
  done
  child=""
  return "$status"
}

crashes=0
while true; do
  # A request to stop arrived during the pause.
  [[ -z $stopping ]] || exit 75
  began=$SECONDS
  "$@" &
  child=$!
  # A request arrived before the child was known.
  [[ -z $stopping ]] || pass_on TERM
  status=0
  wait_for_child || status=$?
  say "exit status $status after $((SECONDS - began)) s"
  [[ -z $stopping ]] || exit "$status"
  case $status in
    0 | 2) exit "$status" ;;
    75)
      [[ -z $return_75 ]] || exit 75
      crashes=0
      ;;
    *)
      ((SECONDS - began < steady_seconds)) || crashes=0
      crashes=$((crashes + 1))
      if ((crashes > max_restarts)); then
        say "gave up after $max_restarts restarts"
        exit "$status"
      fi
      ;;
  esac
  say "starting again in $pause s"
  sleep "$pause" &
  child=$!
  wait_for_child || true
done
