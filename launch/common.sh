# Functions of the launch scripts, which source this file.
# shellcheck shell=bash

dry_run=""

# Report a mistake in the arguments in one line, and exit with status 2.
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

# Print the help: the comment at the head of the script.
usage() {
  awk 'NR > 1 { if (!/^#( |$)/) exit; sub(/^# ?/, ""); print }' "$0"
  exit 0
}

# parse NAMES SWITCHES ARGS...: read flags up to `--`. Set the variable NAME for a flag
# --NAME=VALUE, and SWITCH to 1 for a flag --SWITCH. Set `parsed` to the number of arguments
# to shift; what is left is the program.
parse() {
  local names=" $1 " switches=" $2 dry_run " total=$# flag
  shift 2
  while (($#)); do
    flag=${1%%=*}
    flag=${flag#--}
    case $1 in
      --help) usage ;;
      --) shift && break ;;
      --=*) unknown "$1" ;;
      --*=*) [[ $names == *" $flag "* ]] || unknown "$1" ;;
      *) [[ $1 == --* && $switches == *" $flag "* ]] || unknown "$1" ;;
    esac
    if [[ $1 == *=* ]]; then printf -v "$flag" '%s' "${1#*=}"; else printf -v "$flag" 1; fi
    shift
  done
  # shellcheck disable=SC2034 # read by the scripts
  parsed=$((total - 2 - $#))
}

unknown() {
  fail "unknown argument '$1'${action:+ of $action}; flags are --NAME=VALUE, and --help lists them"
}

# required NAME HINT: check that the flag --NAME was given.
required() {
  [[ -n ${!1} ]] || fail "--$1 is missing; $2"
}

# required_number NAME...: check that the values of these flags are whole numbers.
required_number() {
  local name
  for name in "$@"; do
    [[ ${!name} =~ ^(0|[1-9][0-9]*)$ ]] || fail "--$name takes a whole number, not '${!name}'"
  done
}

# Print a command, quoted for a shell here or on another machine.
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
