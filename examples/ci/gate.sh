#!/bin/sh
# gate.sh TRACE [GOOD]: fails where the recorded job loses more than DPRO_FAIL_ON allows; GOOD, another trace of it or a file of
# `dpro diagnose --save`, says what changed. Leaves dpro.xml (JUnit), dpro.sarif and dpro.prom in DPRO_RESULTS.
set -eu
trace=${1:?usage: gate.sh TRACE [GOOD]}
results=${DPRO_RESULTS:-dpro-results}
mkdir -p "$results"
exec "${DPRO_COMMAND:-dpro}" diagnose "$trace" ${2:+--against "$2"} --fail-on "${DPRO_FAIL_ON:-exposed>25%,straggler>10%,lost>40%}" \
    --junit "$results/dpro.xml" --sarif "$results/dpro.sarif" --metrics "$results/dpro.prom"
