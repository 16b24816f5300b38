#!/bin/bash
# SPDX-License-Identifier: MIT
#
# A real OCI registry (Debian's docker-registry) on a loopback port.
#
#   registry.sh start DIR PORT   storage in DIR/registry; PORT 0 takes a free one; prints the port
#   registry.sh stop DIR         ends the one that DIR/registry.pid names; fine if there is none
#
# It runs in a process group of its own. DIR/registry.log has a line per request in the combined log
# format, DIR/registry.port the port.
set -eu

usage()
{
    sed -n '4,10s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

free_port()
{
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

write_config()
{
    cat > "$dir/registry.yml" <<YAML
version: 0.1
log:
  level: warn
  accesslog:
    disabled: false
storage:
  filesystem:
    rootdirectory: $dir/registry
  delete:
    enabled: true
http:
  addr: 127.0.0.1:$1
YAML
}

# True for a running docker-registry: a pid file can outlive its process, whose number may belong to
# someone else by now, and a dead process stays visible until its parent looks.
is_registry()
{
    grep -q '^Name:[[:space:]]docker-registry$' "/proc/$1/status" 2> /dev/null &&
        ! grep -q '^State:[[:space:]]Z' "/proc/$1/status" 2> /dev/null
}

# Answers and is ours: another program on the port would answer while our process has ended.
answers()
{
    kill -0 "$2" 2> /dev/null || return 2
    is_registry "$2" || return 1
    python3 - "$1" <<'PY'
import http.client, sys
try:
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=5)
    connection.request("GET", "/v2/")
    sys.exit(0 if connection.getresponse().status == 200 else 1)
except OSError:
    sys.exit(1)
PY
}

start()
{
    local wanted=$1 port pid attempt try status
    stop
    mkdir -p "$dir/registry"
    for attempt in 1 2 3; do
        port=$wanted
        [ "$port" != 0 ] || port=$(free_port)
        write_config "$port"
        setsid docker-registry serve "$dir/registry.yml" \
            >> "$dir/registry.log" 2>> "$dir/registry.err" < /dev/null &
        pid=$!
        echo "$pid" > "$dir/registry.pid"
        for try in $(seq 200); do
            status=0
            answers "$port" "$pid" || status=$?
            if [ "$status" = 0 ]; then
                echo "$port" > "$dir/registry.port"
                echo "$port"
                return 0
            fi
            [ "$status" != 2 ] || break
            sleep 0.05
        done
        stop
        [ "$wanted" = 0 ] || break
    done
    echo "registry.sh: docker-registry did not answer on 127.0.0.1:$port; its last words:" >&2
    tail -n 5 "$dir/registry.err" >&2
    return 1
}

stop()
{
    local pid try
    pid=$(cat "$dir/registry.pid" 2> /dev/null) || return 0
    rm -f "$dir/registry.pid"
    is_registry "$pid" || return 0
    kill -TERM -- "-$pid" 2> /dev/null || return 0
    for try in $(seq 100); do
        is_registry "$pid" || return 0
        sleep 0.02
    done
    kill -KILL -- "-$pid" 2> /dev/null || true
}

[ $# -ge 2 ] || usage
action=$1
mkdir -p "$2"
dir=$(cd "$2" && pwd)
case $action in
    start) [ $# = 3 ] || usage; start "$3" ;;
    stop) [ $# = 2 ] || usage; stop ;;
    *) usage ;;
esac
