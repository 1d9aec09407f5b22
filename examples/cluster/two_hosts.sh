#!/bin/bash
# One ensemble over two hosts by ssh, or a search in two shards; no scheduler.
#
#     examples/cluster/two_hosts.sh train run.toml runs/h ALICE BOB       # host names
#     examples/cluster/two_hosts.sh sweep spec.toml results/s ALICE BOB
#
# Needed: ssh to both without a password, the same directory on both (NFS), and `stein` on their PATH. The first host is
# the coordinator; its port must be open to the other. After a failure, the same command goes on where it was.

set -eu
what=$1 file=$2 out=$3 hosts=("${@:4}") port=${PORT:-12345}
count=${#hosts[@]}
for i in "${!hosts[@]}"; do
    case $what in
        train)
            command=(train "$file" --out "$out")
            if [ -e "$out/config.toml" ]; then command=(resume "$out"); fi
            command+=(--coordinator "${hosts[0]}:$port" --num-processes "$count" --process-id "$i") ;;
        sweep) command=(sweep "$file" --out "$out" --shard "$((i + 1))/$count") ;;
        *) echo "error: $what: must be train or sweep" >&2; exit 2 ;;
    esac
    # -tt: if this script is stopped, so are the processes on the hosts.
    ssh -tt "${hosts[$i]}" "cd $(printf %q "$PWD") && stein $(printf '%q ' "${command[@]}")" < /dev/null &
    processes+=($!)
done
status=0
for process in "${processes[@]}"; do wait "$process" || status=1; done
exit "$status"
