#!/usr/bin/env bash
# hosts.sh [--hosts N] [--rate RATE] COMMAND...: runs COMMAND once in each of N (2) network
# namespaces, joined by a switch through links of RATE (1gbit) in each direction. In COMMAND's environment HOST is the
# machine's number from 0, HOSTS how many there are, HOST0 the address of the first, and GLOO_SOCKET_IFNAME and
# NCCL_SOCKET_IFNAME name the link. Each machine keeps to cores of its own where there are enough. Needs root, ip and tc.
# Ends with the status of the first COMMAND that failed, having ended the others; nothing is left behind.
set -euo pipefail
hosts=2 rate=1gbit
while [[ ${1:-} == --* ]]; do
    case $1 in
    --hosts) hosts=$2 ;;
    --rate) rate=$2 ;;
    *) echo "hosts.sh: no such option: $1" >&2; exit 2 ;;
    esac
    shift 2
done
[[ $# -gt 0 ]] || { echo "hosts.sh: no command" >&2; exit 2; }

tag=dp$$ # interfaces' names have at most 15 letters
jobs=()
clean_up()
{
    trap '' INT TERM
    local pid i
    for pid in "${jobs[@]}"; do
        kill -TERM -- "-$pid" 2>/dev/null || true
    done
    for ((i = 0; i < 20; i++)); do
        kill -0 -- "${jobs[@]/#/-}" 2>/dev/null || break
        sleep 0.1
    done
    for pid in "${jobs[@]}"; do
        kill -KILL -- "-$pid" 2>/dev/null || true
    done
    for ((i = 0; i < hosts; i++)); do
        ip link del "$tag-v$i" 2>/dev/null || true
        ip netns del "$tag-$i" 2>/dev/null || true
    done
    ip link del "$tag" 2>/dev/null || true
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

ip link add "$tag" type bridge
ip link set "$tag" up
for ((i = 0; i < hosts; i++)); do
    ip netns add "$tag-$i"
    ip link add "$tag-v$i" type veth peer name eth0 netns "$tag-$i"
    ip link set "$tag-v$i" master "$tag" up
    ip -n "$tag-$i" addr add "10.77.0.$((i + 1))/24" dev eth0
    ip -n "$tag-$i" link set eth0 up
    ip -n "$tag-$i" link set lo up
    # Linux's usual congestion control, whatever this machine's own is, and no more than usual in a sender's queue
    ip -n "$tag-$i" route replace 10.77.0.0/24 dev eth0 src "10.77.0.$((i + 1))" congctl cubic
    ip netns exec "$tag-$i" sysctl -qw net.ipv4.tcp_limit_output_bytes=1048576
    # a bucket of hardly more than one packet of 64 KiB: what a link did not carry it does not carry later
    tc -n "$tag-$i" qdisc add dev eth0 root tbf rate "$rate" burst 80kb latency 50ms
    tc qdisc add dev "$tag-v$i" root tbf rate "$rate" burst 80kb latency 50ms
done

export HOSTS=$hosts HOST0=10.77.0.1 GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME=eth0
cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc) # which these would lower
for ((i = 0; i < hosts; i++)); do
    share=$((cores / hosts))
    first=$((i % cores)) last=$((i % cores))
    [[ $share -lt 1 ]] || first=$((i * share)) last=$((i * share + share - 1))
    HOST=$i setsid ip netns exec "$tag-$i" taskset -c "$first-$last" "$@" &
    jobs+=($!)
done
for ((i = 0; i < hosts; i++)); do
    wait -n
done
