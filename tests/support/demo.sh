#!/bin/bash
# SPDX-License-Identifier: MIT
#
# demo.sh TB2_BAKE DIR: makes a task set in DIR, serves it, bakes it, looks at the result.
# `./dev demo` calls it. The second time there is nothing left to do.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tool=$(readlink -f "$1")
mkdir -p "$2"
home=$(cd "$2" && pwd)
set_dir=$home/set
recipe=$(cd "$here/../.." && pwd)/manifests/recipes/demo.yaml
export TB2_BAKE_STORE=$home/store TB2_BAKE_CACHE=$home/cache

# Shows a command as one would type it, and runs it.
show()
{
    printf '\n$ tb2-bake %s\n' "$*"
    "$tool" "$@"
}

first_alias()
{
    "$tool" ls --json | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["alias"])'
}

trap '"$here/registry.sh" stop "$set_dir"' EXIT
trap 'exit 130' INT TERM

# The port is part of the tasks' image names, so a set is used again only if its port is still free.
port=$(cat "$set_dir/registry.port" 2> /dev/null || echo 0)
if [ ! -e "$set_dir/set.json" ] || ! "$here/registry.sh" start "$set_dir" "$port" > /dev/null; then
    "$here/make_task_set.py" --out "$set_dir" --tasks 4
    "$here/registry.sh" start "$set_dir" "$(cat "$set_dir/registry.port")" > /dev/null
fi
echo "A real registry serves the images on 127.0.0.1:$(cat "$set_dir/registry.port")."

show --tasks-dir "$set_dir/tasks" --all --recipe "$recipe"
show ls
alias=$(first_alias)
show run "$alias" -- cat /etc/os-release
echo
echo "Once more: nothing has changed, so there is nothing to do."
show --tasks-dir "$set_dir/tasks" --all --recipe "$recipe"
echo
echo "Look around: $tool run --store $home/store $alias -- ls -l /app"
