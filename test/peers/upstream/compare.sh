#!/bin/bash
# Measures Proa's control plane and upstream's server library on etcd, one after
# the other on this machine. Arguments are passed to `proa bench api`.
#
#   make bench-upstream BENCH="--only calls --duration 2s"
#
# The environment may set PORT, the first of four that are used at 127.0.0.1
# (default 16443), and REPEAT, how often both are measured in turn (default 1).
set -euo pipefail
root=$(cd "$(dirname "$0")/../../.." && pwd)
bin=$root/build/bench port=${PORT:-16443}
work=$(mktemp -d)
pids=()

finish() {
	for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
	for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
	pids=()
}
trap 'finish; rm -rf "$work"' EXIT

ready() { # URL
	for _ in $(seq 600); do
		if curl -sk -o /dev/null --fail "$1"; then return; fi
		sleep 0.1
	done
	echo "not ready: $1; see $work" >&2
	return 1
}

proa() {
	"$root/bin/proa" server --no-node --data-dir "$work/proa" --port "$port" --kubelet-port $((port + 1)) >"$work/proa.log" 2>&1 &
	pids=($!)
	ready "https://127.0.0.1:$port/readyz"
	echo "== Proa: control plane without a node"
	"$root/bin/proa" bench api --kubeconfig "$work/proa/kubeconfig" --server-pid "${pids[0]}" --keep "$@"
	finish
	rm -rf "$work/proa"
}

upstream() {
	mkdir -p "$work/upstream"
	"$bin/etcd" --data-dir "$work/etcd" --listen-client-urls "http://127.0.0.1:$((port + 2))" --advertise-client-urls "http://127.0.0.1:$((port + 2))" \
		--listen-peer-urls "http://127.0.0.1:$((port + 3))" --quota-backend-bytes=8589934592 >"$work/etcd.log" 2>&1 &
	pids=($!)
	ready "http://127.0.0.1:$((port + 2))/health"
	"$bin/upstream" --port "$port" --etcd "http://127.0.0.1:$((port + 2))" --dir "$work/upstream" >"$work/upstream.log" 2>&1 &
	pids+=($!)
	ready "https://127.0.0.1:$port/readyz"
	echo "== upstream: generic API server library on etcd"
	"$root/bin/proa" bench api --kubeconfig "$work/upstream/kubeconfig" --server-pid "${pids[0]},${pids[1]}" --keep "$@"
	finish
	rm -rf "$work/etcd" "$work/upstream"
}

for _ in $(seq "${REPEAT:-1}"); do
	proa "$@"
	upstream "$@"
done
