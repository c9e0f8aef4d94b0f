# Ends a server and removes its folder when its owner is gone.
#
# usage: sh -c "$script" guard FOLDER SIGNAL, with the read end of the owner's pipe as stdin.
# The owner writes nothing: the kernel closes the pipe when the owner drops the server and when
# the owner dies, whatever it died of. FOLDER/pid names the server, FOLDER/data is PostgreSQL's.

folder=$1
ending=$2

# Ctrl-C reaches every process of a terminal; this one still has its work to do then.
trap '' HUP INT QUIT TERM PIPE
cd / || exit 1

while read -r _; do :; done

fields_of() {
    { read -r line < "/proc/$1/stat"; } 2>/dev/null && echo "${line##*) }"
}

alive() {
    if [ -r /proc/self/stat ]; then
        # An empty answer: gone. Z: dead, and only not yet collected by its parent.
        case $(fields_of "$1") in '' | Z*) return 1 ;; esac
    else
        kill -0 "$1" 2>/dev/null
    fi
}

# Without a process of its own for each process there is: many guards work at once.
children_of() {
    if [ -r "/proc/$1/task/$1/children" ]; then
        children=
        # The file has no newline at its end, which `read` takes for a failure.
        read -r children < "/proc/$1/task/$1/children"
        echo "$children"
    else
        ps -A -o pid= -o ppid= 2>/dev/null | while read -r child parent; do
            [ "$parent" = "$1" ] && echo "$child"
        done
    fi
}

signal() {
    [ $# -gt 1 ] && kill -s "$@" 2>/dev/null
}

pid=$(cat "$folder/pid" 2>/dev/null)
if [ -n "$pid" ] && alive "$pid"; then
    # A paused server hears nothing else. What ends it in good order also frees what the kernel
    # keeps for it, so that comes first; but it is not waited for longer than 3 seconds.
    signal CONT "$pid" $(children_of "$pid")
    if [ "$ending" != KILL ]; then
        signal "$ending" "$pid"
        tries=0
        while alive "$pid" && [ $tries -lt 150 ]; do
            sleep 0.02
            tries=$((tries + 1))
        done
    fi
    signal STOP "$pid"
    children=$(children_of "$pid")
    signal KILL "$pid" $children
    tries=0
    while alive "$pid" && [ $tries -lt 100 ]; do
        sleep 0.02
        tries=$((tries + 1))
    done
fi

# A PostgreSQL that was killed leaves a shared memory segment; the last field of line 7 names it.
segment=$(sed -n '7s/^.* \([0-9][0-9]*\) *$/\1/p' "$folder/data/postmaster.pid" 2>/dev/null)
[ -n "$segment" ] && ipcrm -m "$segment" >/dev/null 2>&1

rm -rf "$folder"
