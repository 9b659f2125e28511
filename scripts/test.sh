#!/usr/bin/env bash
# Sets the machine up for tests and runs all of them. Arguments go to the test runner:
#   ./scripts/test.sh                 everything
#   ./scripts/test.sh attention       tests whose name holds "attention"
#
# A GPU is required, and a software adapter counts as one. The last line is the sum over
# all test programs: "N passed, N failed", with ", N skipped" where tests were ignored.
set -euo pipefail

# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

export REQUIRE_GPU=1

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Looking for GL adapters needs a runtime folder.
if [[ -z ${XDG_RUNTIME_DIR:-} ]]; then
  mkdir -m 700 "$scratch/runtime"
  export XDG_RUNTIME_DIR=$scratch/runtime
fi

# sum_up LOG STATUS: the runner prints one summary for each test program; this is their
# sum. A test program that does not build or does not end counts as one failure.
sum_up() {
  awk -v status="$2" '
    /^test result: / {
      for (i = 2; i <= NF; i++) {
        if ($i ~ /^passed/) passed += $(i - 1)
        if ($i ~ /^failed/) failed += $(i - 1)
        if ($i ~ /^ignored/) skipped += $(i - 1)
      }
    }
    END {
      if (status != 0 && failed == 0) failed = 1
      line = sprintf("%d passed, %d failed", passed, failed)
      if (skipped > 0) line = line sprintf(", %d skipped", skipped)
      print line
    }' "$1"
}

install_missing yes yes
# Builds the program as well, since tests run it: the same build that the tests then use.
cargo_quietly test --release --workspace --locked --no-run

if [[ -z ${NELUMBO_TEST_MODEL:-} ]]; then
  NELUMBO_TEST_MODEL=$("$nelumbo" pull smollm2-135m) \
    || die "the tests need the model; NELUMBO_TEST_MODEL=FILE names a copy of it"
  export NELUMBO_TEST_MODEL
fi
say "test model: $NELUMBO_TEST_MODEL"

cd "$repo"
status=0
cargo test --release --workspace --locked --no-fail-fast -- "$@" | tee "$scratch/log" || status=$?
sum_up "$scratch/log" "$status"
exit "$status"
