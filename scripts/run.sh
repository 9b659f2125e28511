#!/usr/bin/env bash
# Answers a prompt:  ./scripts/run.sh "Why is the sky blue?"
#
# Installs what is missing, builds nelumbo, gets the default model, streams the answer.
# All arguments go to `nelumbo run`; where they name no model, the default one is added
# and the rest is the prompt. Only the answer goes to stdout.
set -euo pipefail

default_model=smollm2-135m

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Whether the arguments, or the environment, name a model. The value of another option is
# never one, even if it looks like it: `-p -m` is a prompt.
names_model() {
  [[ -n ${NELUMBO_MODEL:-} ]] && return 0
  while (($#)); do
    case $1 in
      --) return 1 ;;
      --model | --model=* | -m*) return 0 ;;
      -p | --prompt | -sys | --system | -r | --reverse-prompt | --stop) shift ;;
    esac
    shift || return 1
  done
  return 1
}

# Nothing is loaded for these.
asks_only() {
  local argument
  for argument; do
    case $argument in
      --) return 1 ;;
      -h | --help | --list-devices) return 0 ;;
    esac
  done
  return 1
}

model_is_there() {
  local cache=${NELUMBO_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/nelumbo}
  compgen -G "$cache/models/$default_model/*.gguf" >/dev/null
}

model=()
need_download=no
if ! names_model "$@" && ! asks_only "$@"; then
  model=(-m "$default_model")
  model_is_there || need_download=yes
fi

install_missing no "$need_download"
cargo_quietly build --release --locked --bin nelumbo
exec "$nelumbo" run ${model[@]+"${model[@]}"} "$@"
