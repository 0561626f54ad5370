#!/bin/sh
# The README's last two commands: converts the checkpoint to int8 and measures the accuracy of the result.
set -eu
aqt=$1
evaluate=$2

float=$("$evaluate" examples/digits/checkpoint)
"$aqt" convert examples/digits/checkpoint "$TEST_TMPDIR/int8" --preset w8a8_dynamic
int8=$("$evaluate" "$TEST_TMPDIR/int8")
echo "float: $float; int8: $int8"
[ "$float" = "$int8" ]
[ "$float" = "accuracy on the 360 test rows: 0.9417" ]
# The weights shrink to a quarter; the biases and the header keep their sizes.
bytes=$(wc -c <"$TEST_TMPDIR/int8/model.safetensors")
[ "$bytes" -lt 120000 ]
