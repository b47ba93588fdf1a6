# What the launch scripts share; bash sources it.
# shellcheck shell=bash

dry_run=""

# Report a mistake in the arguments in one line, and exit with status 2.
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

# Print the comment at the head of the script, which is its help.
usage() {
  awk 'NR > 1 { if (!/^#( |$)/) exit; sub(/^# ?/, ""); print }' "$0"
  exit 0
}

# required NAME HINT: check that the flag --NAME, whose value is in the variable NAME, was
# given.
required() {
  [[ -n ${!1} ]] || fail "--$1 is missing; $2"
}

# required_number NAME: check that its value is a whole number.
required_number() {
  [[ ${!1} =~ ^(0|[1-9][0-9]*)$ ]] || fail "--$1 takes a whole number, not '${!1}'"
}

# Print a command as a line that a shell, here or on another machine, reads as the same
# words.
quoted() {
  local word line="" quote="'\\''"
  for word in "$@"; do
    [[ $word =~ ^[A-Za-z0-9_@%+=:,./-]+$ ]] || word="'${word//\'/$quote}'"
    line+=" $word"
  done
  printf '%s\n' "${line# }"
}

# Run a command, or print it with --dry_run; exit with its status if it fails.
run() {
  if [[ -n $dry_run ]]; then
    quoted "$@"
    return
  fi
  local status=0
  "$@" || status=$?
  if ((status)); then
    printf 'error: exit status %s of: %s\n' "$status" "$(quoted "$@")" >&2
    exit "$status"
  fi
}
