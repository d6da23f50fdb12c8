#!/bin/sh
# expect_fault.sh PROGRAM PATTERN: succeeds when PROGRAM, a Criterion test program, fails, reports its one test as
# failed, and prints PATTERN. A program that fails for another reason (it cannot start, say) is no success.
program=$1
pattern=$2
output=$("$program" 2>&1)
code=$?
printf '%s\n' "$output"
if [ "$code" -eq 0 ]; then
  echo "expect_fault: $program passed, although it has a planted fault"
  exit 1
fi
case $output in
  *"$pattern"*) ;;
  *)
    echo "expect_fault: $program failed (exit code $code) without a word of: $pattern"
    exit 1
    ;;
esac
case $output in
  *"Passing: 0 "*) echo "expect_fault: failed as planted (exit code $code)" ;;
  *)
    echo "expect_fault: $program exited with $code, but Criterion counted its test as passed"
    exit 1
    ;;
esac
