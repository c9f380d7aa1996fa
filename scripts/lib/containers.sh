# shellcheck shell=bash
# Containers, for the scripts that have to do with them. Sourced.
#
#   find_engine                  prints docker or podman, the first that answers: a client whose daemon is away does not count
#   find_host_name ENGINE        prints the name by which that engine's containers reach this machine
#   address_from_inside URL NAME prints a database's address with loopback, which in there is the container's own, as NAME

find_engine() {
    local name
    for name in docker podman; do
        if "$name" info >/dev/null 2>&1; then
            printf '%s\n' "$name"
            return
        fi
    done
    echo "${0##*/}: neither docker nor podman answers here (try: docker info, podman info)" >&2
    return 1
}

find_host_name() {
    case $1 in
        docker) echo host.docker.internal ;;
        podman) echo host.containers.internal ;;
    esac
}

address_from_inside() {
    sed -E "s#(//|@)(127\.0\.0\.1|localhost|\[::1\])([:/?]|\$)#\1$2\3#" <<<"$1"
}
