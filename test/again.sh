#!/usr/bin/env bash
# again.sh PACKAGES FLAG... runs `go test FLAG... PACKAGES`, and up to three tests that failed once more, by
# themselves: a machine that is busy elsewhere does not hold up a change. The names of those that pass then
# go to build/again.txt. A package that fails otherwise (it does not build, panics, or its TestMain gives up)
# has failed.
set -uo pipefail
packages=$1; shift
log=$(mktemp); trap 'rm -f "$log"' EXIT

${GO:-go} test "$@" $packages 2>&1 | grep -v 'no test files' | tee "$log"
status=${PIPESTATUS[0]}
[ "$status" -eq 0 ] && exit 0

# A line "PACKAGE TEST" for each test that failed; it stops at what is no failure of a test.
failed=$(awk '
	/^panic: |^fatal error: |\[build failed\]|\[setup failed\]/ { exit 1 }
	/^--- FAIL: / { tests[++n] = $3 }
	/^ok / { n = 0 }
	/^FAIL\t/ { if (!n) exit 1; for (i = 1; i <= n; i++) print $2, tests[i]; n = 0 }
' "$log") || exit "$status"
count=$(grep -c . <<<"$failed")
if [ "$count" -eq 0 ] || [ "$count" -gt 3 ]; then exit "$status"; fi

echo "again: $failed"
while read -r package name; do
	${GO:-go} test "$@" -count=1 -run "^$name\$" "$package" || exit "$status"
	mkdir -p build && echo "$package.$name" >>build/again.txt
done <<<"$failed"
