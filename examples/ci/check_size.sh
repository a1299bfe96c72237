#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles a network, builds its firmware, and fails where that has grown too much since the report that is in the repository.
#   MODEL      the network's file
#   BOARD      what it is for (microc boards); this computer unless given
#   BASE       the report to compare with; where there is none yet, the new one is shown and nothing fails
#   FAIL_OVER  by how much flash and RAM may grow
#   PROFILE    1: measure the time of an inference, too (an emulated board, or one on this machine)
#   OPTIONS    more words for microc compile
#   OUT        where the firmware and the new report are left
set -eu
: "${MODEL:?says which network}" "${BOARD:=host}" "${BASE:=microc-size.json}" "${FAIL_OVER:=2%}" "${PROFILE:=0}" "${OPTIONS:=}"
: "${OUT:=build/microc}" "${MICROC:=microc}" "${GITHUB_STEP_SUMMARY:=/dev/null}"

mkdir -p "$OUT"
# shellcheck disable=SC2086 # several words each
$MICROC compile "$MODEL" --board "$BOARD" $OPTIONS -o "$OUT/firmware" -q
$MICROC build "$OUT/firmware" -q
if [ "$PROFILE" = 1 ]; then
    $MICROC profile "$OUT/firmware" --json > "$OUT/size.json"
    new="$OUT/size.json"
else
    $MICROC size "$OUT/firmware" --json > "$OUT/size.json"
    new="$OUT/firmware"
fi

if [ ! -f "$BASE" ]; then
    echo "there is no $BASE yet: commit $OUT/size.json as that, and the next run compares"
    exit 0
fi
code=0
$MICROC size "$new" --against "$BASE" --fail-over "$FAIL_OVER" > "$OUT/growth.txt" || code=$?
cat "$OUT/growth.txt"
{ echo '```'; cat "$OUT/growth.txt"; echo '```'; } >> "$GITHUB_STEP_SUMMARY"
if [ "$code" = 7 ]; then
    echo "if that is meant: commit $OUT/size.json as $BASE" >&2
fi
exit "$code"
